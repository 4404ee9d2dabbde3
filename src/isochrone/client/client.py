"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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


class Transport(Protocol):
    """One protocol. Every call raises ``IsochroneError``, and nothing else, for a failure of the server or the way."""

    def infer(self, call: InferCall, seconds: float | None) -> Outputs: ...

    def stream(self, call: InferCall, seconds: float | None) -> Iterator[Outputs]: ...

    def is_ready(
        self, model: str, version: str, seconds: float | None, headers: Mapping[str, str] = NO_HEADERS
    ) -> bool: ...

    def metadata(
        self, model: str, version: str, seconds: float | None, headers: Mapping[str, str]
    ) -> ModelMetadata: ...

    def close(self) -> None: ...


class Client:
    """A client of one server: a worker, a gateway, or any other of the Open Inference Protocol. Threads may share it.

    ::

        with isochrone.Client("localhost:8000") as client:
            answer = client.infer("double", {"x": np.ones(3, np.float32)}, deadline_ms=50)
            print(answer["y"], answer.model_version)

    Args:
        url: ``host:port`` or ``http://host:port`` for HTTP, ``grpc://host:port`` for gRPC; ``https`` and ``grpcs`` over
            TLS.
        retries: How often a request is sent again at most, if nothing of it can have run.
        token: Sent with every call as ``Authorization: Bearer``, unless the call's ``headers`` have another; None: the
            value of the environment variable ISOCHRONE_API_TOKEN, if there is one; "": none.
        ca: PEM file of the authority to trust, in place of the system's.
        cert: PEM file of the client's certificate, for servers that ask for one; ``key`` is its key.
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
        certificates = Certificates(*(None if path is None else Path(path) for path in (ca, cert, key)))
        certificates.check(self._address)
        self._transport = _open(self._address, certificates)
        self.is_closed = False

    @property
    def url(self) -> str:
        return str(self._address)

    def infer(
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
        """Run a model on inputs, and return its outputs: a dict of name to array (``Outputs``).

        Args:
            model: The model's name.
            inputs: An array for each input, sent with its own type; text and bytes are BYTES.
            outputs: Names of the outputs to return; None: all.
            version: The version to run; "": the one that the server chooses.
            deadline_ms: The answer must arrive within this time. The server rejects what it cannot answer in time, and
                this call raises ``DeadlineExceeded`` when the time has passed. None: no limit.
            id: An id for logs and traces; the answer and errors carry it.
            priority: 1 is the highest class; 0: the model's default.
            parameters: Further parameters of the request, as ``{"sequence_id": 7, "sequence_start": True}``.
            headers: HTTP headers or gRPC metadata. ``traceparent`` and ``tracestate`` of the current OpenTelemetry span
                are sent unless they are given here.

        Raises:
            IsochroneError: by what went wrong: ``InvalidArgument``, ``NotFound``, ``QueueFull``, ``Unavailable``,
                ``DeadlineExceeded``, ``Internal`` and others of ``isochrone.errors``, with the server's text, its
                ``status`` and the ``request_id``.
        """
        call = make_call(
            model, inputs, outputs, version, deadline_ms, id, priority, parameters, headers, self._credential
        )
        attempts = Attempts(self._retries, deadline_ms, now_ns(), self._address)
        while True:
            try:
                return self._transport.infer(call, attempts.seconds(now_ns()))
            except IsochroneError as error:
                delay = attempts.delay_after(error, now_ns())
            time.sleep(delay)

    def stream(
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
    ) -> Iterator[Outputs]:
        """Run a decoupled model, and iterate over its responses as they come. Over gRPC only.

        The arguments are those of ``infer``; ``deadline_ms`` is that of the whole stream. Closing the iterator, or
        leaving its loop, ends the model's work. It is sent again only if no response has come. ::

            with isochrone.Client("grpc://localhost:8001") as client:
                for response in client.stream("countdown", {"start": np.int32([3])}):
                    print(response["left"])
        """
        call = make_call(
            model, inputs, outputs, version, deadline_ms, id, priority, parameters, headers, self._credential
        )
        return self._stream(call, Attempts(self._retries, deadline_ms, now_ns(), self._address))

    def _stream(self, call: InferCall, attempts: Attempts) -> Iterator[Outputs]:
        while True:
            begun = False
            try:
                for response in self._transport.stream(call, attempts.seconds(now_ns())):
                    begun = True
                    yield response
                return
            except IsochroneError as error:
                if begun:
                    raise
                delay = attempts.delay_after(error, now_ns())
            time.sleep(delay)

    def is_ready(self, model: str = "", version: str = "", *, headers: Mapping[str, str] | None = None) -> bool:
        """Whether the server, or one of its models, can take requests. False also if it cannot be reached, or does not
        say. ``headers``: as for ``infer``."""
        try:
            return self._transport.is_ready(model, version, QUESTION_SECONDS, fields_with(self._credential, headers))
        except IsochroneError:
            return False

    def wait_ready(
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
                if self._transport.is_ready(model, version, max(0.001, min(left, QUESTION_SECONDS)), fields):
                    return
                reason = NOT_READY
            except (Unauthenticated, PermissionDenied):
                raise  # waiting gives nobody a right
            except IsochroneError as error:
                reason = str(error)
            left = ends - time.monotonic()
            if left <= 0:
                raise never_ready(self._address, model, seconds, reason)
            time.sleep(min(POLL_SECONDS, left))

    def metadata(self, model: str, version: str = "", *, headers: Mapping[str, str] | None = None) -> ModelMetadata:
        """The model's inputs, outputs and versions. ``headers``: as for ``infer``."""
        return self._transport.metadata(model, version, QUESTION_SECONDS, fields_with(self._credential, headers))

    def close(self) -> None:
        """Close the connections. May be called again."""
        self.is_closed = True
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<isochrone.Client of {self._address}>"


def _open(address: Address, certificates: Certificates) -> Transport:
    # Imported here: gRPC's library takes a third of a second, which HTTP does not need.
    if address.is_grpc:
        from isochrone.client.grpc.transport import GrpcTransport

        return GrpcTransport(address, certificates)
    from isochrone.client.http.transport import HttpTransport

    return HttpTransport(address, certificates)
