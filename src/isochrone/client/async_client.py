"""The asynchronous client: the interface of ``client``, with coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from numpy.typing import ArrayLike

from isochrone.client.address import Address, Certificates, parse_address
from isochrone.client.answers import ModelMetadata, Outputs
from isochrone.client.attempts import DEFAULT_RETRIES, Attempts
from isochrone.client.calls import NO_HEADERS, InferCall, fields_with, make_call
from isochrone.client.readiness import NOT_READY, POLL_SECONDS, QUESTION_SECONDS, never_ready
from isochrone.clock import now_ns
from isochrone.errors import IsochroneError, PermissionDenied, Unauthenticated
from isochrone.secure.api_token import token_fields


class AsyncTransport(Protocol):
    """One protocol, as ``client.Transport``."""

    async def infer(self, call: InferCall, seconds: float | None) -> Outputs: ...

    def stream(self, call: InferCall, seconds: float | None) -> AsyncIterator[Outputs]: ...

    async def is_ready(
        self, model: str, version: str, seconds: float | None, headers: Mapping[str, str] = NO_HEADERS
    ) -> bool: ...

    async def metadata(
        self, model: str, version: str, seconds: float | None, headers: Mapping[str, str]
    ) -> ModelMetadata: ...

    async def close(self) -> None: ...


class AsyncClient:
    """A client of one server, as ``isochrone.Client``, for one event loop. Any number of requests may be under way.

    ::

        async with isochrone.AsyncClient("localhost:8000") as client:
            answer = await client.infer("double", {"x": np.ones(3, np.float32)}, deadline_ms=50)
    """

    def __init__(
        self,
        url: str,
        *,
        retries: int = DEFAULT_RETRIES,
        token: str | None = None,
        ca: str | PathLike[str] | None = None,
        cert: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
    ) -> None:
        self._address = parse_address(url)
        self._retries = retries
        self._credential = token_fields(token)
        self._certificates = Certificates(*(None if path is None else Path(path) for path in (ca, cert, key)))
        self._certificates.check(self._address)
        # Imported now, and not within the deadline of the first call.
        self._open = _transport_of(self._address)
        #: Opened by the first call: it belongs to that call's event loop.
        self._opened: AsyncTransport | None = None

    @property
    def url(self) -> str:
        return str(self._address)

    @property
    def _transport(self) -> AsyncTransport:
        if self._opened is None:
            self._opened = self._open(self._address, self._certificates)
        return self._opened

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        outputs: Sequence[str] | None = None,
        version: str = "",
        deadline_ms: float | None = None,
        id: str = "",
        priority: int = 0,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Outputs:
        """Run a model on inputs, and return its outputs. Arguments and errors are those of ``Client.infer``."""
        call = make_call(
            model, inputs, outputs, version, deadline_ms, id, priority, parameters, headers, self._credential
        )
        attempts = Attempts(self._retries, deadline_ms, now_ns(), self._address)
        while True:
            try:
                return await self._transport.infer(call, attempts.seconds(now_ns()))
            except IsochroneError as error:
                delay = attempts.delay_after(error, now_ns())
            await asyncio.sleep(delay)

    async def stream(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        outputs: Sequence[str] | None = None,
        version: str = "",
        deadline_ms: float | None = None,
        id: str = "",
        priority: int = 0,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Outputs]:
        """Run a decoupled model, and iterate over its responses as they come, as ``Client.stream``. Over gRPC only."""
        call = make_call(
            model, inputs, outputs, version, deadline_ms, id, priority, parameters, headers, self._credential
        )
        attempts = Attempts(self._retries, deadline_ms, now_ns(), self._address)
        while True:
            begun = False
            try:
                async for response in self._transport.stream(call, attempts.seconds(now_ns())):
                    begun = True
                    yield response
                return
            except IsochroneError as error:
                if begun:
                    raise
                delay = attempts.delay_after(error, now_ns())
            await asyncio.sleep(delay)

    async def is_ready(self, model: str = "", version: str = "", *, headers: Mapping[str, str] | None = None) -> bool:
        """Whether the server, or one of its models, can take requests. False also if it cannot be reached, or does not
        say. ``headers``: as for ``infer``."""
        try:
            return await self._transport.is_ready(
                model, version, QUESTION_SECONDS, fields_with(self._credential, headers)
            )
        except IsochroneError:
            return False

    async def wait_ready(
        self,
        seconds: float = 60.0,
        model: str = "",
        version: str = "",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Return when the server, or one of its models, is ready; raise ``Unavailable`` after ``seconds``, and at
        once what says that the caller has no right to ask. ``headers``: as for ``infer``."""
        fields = fields_with(self._credential, headers)
        ends = time.monotonic() + seconds
        while True:
            left = ends - time.monotonic()
            try:
                if await self._transport.is_ready(model, version, max(0.001, min(left, QUESTION_SECONDS)), fields):
                    return
                reason = NOT_READY
            except (Unauthenticated, PermissionDenied):
                raise  # waiting gives nobody a right
            except IsochroneError as error:
                reason = str(error)
            left = ends - time.monotonic()
            if left <= 0:
                raise never_ready(self._address, model, seconds, reason)
            await asyncio.sleep(min(POLL_SECONDS, left))

    async def metadata(
        self, model: str, version: str = "", *, headers: Mapping[str, str] | None = None
    ) -> ModelMetadata:
        """The model's inputs, outputs and versions. ``headers``: as for ``infer``."""
        return await self._transport.metadata(model, version, QUESTION_SECONDS, fields_with(self._credential, headers))

    async def close(self) -> None:
        """Close the connections. May be called again."""
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<isochrone.AsyncClient of {self._address}>"


def _transport_of(address: Address) -> Callable[[Address, Certificates], AsyncTransport]:
    # Imported here, as in ``client``.
    if address.is_grpc:
        from isochrone.client.grpc.async_transport import AsyncGrpcTransport

        return AsyncGrpcTransport
    from isochrone.client.http.async_transport import AsyncHttpTransport

    return AsyncHttpTransport
