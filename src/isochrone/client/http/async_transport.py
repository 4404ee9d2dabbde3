"""HTTP for the asynchronous client: the connections of the gateway, in a pool."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

from isochrone.client.address import Address, Certificates
from isochrone.client.answers import ModelMetadata, Outputs
from isochrone.client.calls import NO_HEADERS, InferCall
from isochrone.client.failures import hint_of_authority, late
from isochrone.client.http import body_compression, codec
from isochrone.client.http.failures import http_failure
from isochrone.client.http.requests import LIMITS, REFUSED, has_ended, request_head, stream_unsupported
from isochrone.client.scheme_hints import hint_of_plain, hint_of_tls
from isochrone.errors import ConnectionLost, IsochroneError, Unavailable
from isochrone.wire.connect import connect_http1
from isochrone.wire.http1.client import Http1ClientConnection
from isochrone.wire.http1.response_heads import ResponseHeads
from isochrone.wire.receiver import Gathering, Response

#: Seconds for which a server that refused a body in zstd gets plain ones.
_PLAIN_SECONDS = 60.0
#: Bytes of an answer that came in zstd: as many as a server takes of a request by default.
MOST_UNPACKED = 256 << 20


class AsyncHttpTransport:
    """Connections to one server: one for each request that is under way at the same time.

    ``zstd_level``: of the requests' bodies, and answers are asked for in zstd; None: neither is compressed. A server
    that does not take zstd gets plain bodies for a while. ``most_unpacked``: bytes of an answer that came in zstd.
    """

    def __init__(
        self,
        address: Address,
        certificates: Certificates,
        zstd_level: int | None = None,
        most_unpacked: int = MOST_UNPACKED,
    ) -> None:
        self._address = address
        self._zstd_level = zstd_level
        self._most_unpacked = most_unpacked
        #: Bodies are not compressed before.
        self._plain_until = -math.inf
        self._tls = certificates.context() if address.is_secure else None
        self._idle: list[Http1ClientConnection] = []
        self._closed = False
        self._heads = ResponseHeads(LIMITS)

    async def infer(self, call: InferCall, seconds: float | None) -> Outputs:
        if self._zstd_level is not None:
            return await self._infer_compressed(call, seconds, self._zstd_level)
        body, json_length = codec.encode_infer(call)
        path = codec.model_path(call.model, call.version, "/infer")
        headers = codec.infer_headers(call, json_length, seconds)
        figures = _Figures()
        response = await self._exchange("POST", path, headers, body, seconds, figures)
        if response.status != 200:
            raise self._failure(response, path, call.id)
        return figures.noted(codec.decode_infer(_texts(response), _body(response), str(self._address)), body, response)

    async def _infer_compressed(self, call: InferCall, seconds: float | None, level: int) -> Outputs:
        begun, ends = time.monotonic_ns(), None if seconds is None else time.monotonic() + seconds
        figures = _Figures()
        plain, json_length = codec.encode_infer(call)
        path = codec.model_path(call.model, call.version, "/infer")
        body: Sequence[bytes | memoryview] = plain
        encoding: Mapping[str, str] = {}
        if time.monotonic() >= self._plain_until:
            async with self._within(_left(ends)):
                with figures.unsent():
                    body, encoding = await body_compression.packed(plain, level)
        headers = {**codec.infer_headers(call, json_length, _left(ends)), **encoding, **body_compression.ASKED}
        response = await self._exchange("POST", path, headers, body, _left(ends), figures)
        texts = _texts(response)
        if encoding and body_compression.is_refused(response.status, texts):
            self._plain_until = time.monotonic() + _PLAIN_SECONDS
            # The exchange that follows is the one that counts.
            body, figures = plain, _Figures(time.monotonic_ns() - begun)
            headers = {**codec.infer_headers(call, json_length, _left(ends)), **body_compression.ASKED}
            response = await self._exchange("POST", path, headers, body, _left(ends), figures)
            texts = _texts(response)
        if response.status != 200:
            raise self._failure(response, path, call.id)
        place = str(self._address)
        async with self._within(_left(ends)):
            with figures.unsent():
                whole = await body_compression.unpacked(texts, _body(response), place, self._most_unpacked)
        return figures.noted(codec.decode_infer(texts, whole, place), body, response)

    def stream(self, call: InferCall, seconds: float | None) -> AsyncIterator[Outputs]:
        raise stream_unsupported(self._address)

    async def is_ready(
        self, model: str, version: str, seconds: float | None, headers: Mapping[str, str] = NO_HEADERS
    ) -> bool:
        path = codec.model_path(model, version, "/ready") if model else "/v2/health/ready"
        response = await self._exchange("GET", path, headers, (), seconds)
        if response.status in REFUSED:
            raise self._failure(response, path)
        return response.status == 200

    async def metadata(
        self, model: str, version: str, seconds: float | None, headers: Mapping[str, str]
    ) -> ModelMetadata:
        path = codec.model_path(model, version)
        response = await self._exchange("GET", path, headers, (), seconds)
        if response.status != 200:
            raise self._failure(response, path)
        return codec.decode_metadata(_body(response), str(self._address))

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        # Transports close in the next turn of the loop.
        await asyncio.sleep(0)

    async def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Sequence[bytes | memoryview],
        seconds: float | None,
        figures: _Figures | None = None,
    ) -> Response:
        head = request_head(method, path, self._address, headers, sum(map(len, body)))
        async with self._within(seconds):
            with (figures or _Figures()).unsent():
                connection, is_new = await self._take()
            receiver = Gathering(asyncio.get_running_loop(), LIMITS.max_body_bytes)
            call = connection.send(head, body, receiver)
            try:
                response = await receiver.future
            except BaseException as error:
                # Given up, which the end of the connection tells the server; perhaps just when the answer came.
                call.cancel()
                connection.close()
                if is_new and isinstance(error, ConnectionLost) and connection.head is None:
                    raise self._ended_at_once(error) from None
                raise
        if connection.is_reusable:
            if self._closed:
                connection.close()
            else:
                self._idle.append(connection)
        return response

    async def _take(self) -> tuple[Http1ClientConnection, bool]:
        """A connection, and whether it is new."""
        if self._closed:
            raise Unavailable("the client is closed")
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_reusable:
                continue
            # Its end may have arrived and wait for the event loop to read it.
            if not has_ended(connection.transport.get_extra_info("socket").fileno()):
                return connection, False
            connection.close()
        try:
            made = await connect_http1(
                self._address.host, self._address.port, limits=LIMITS, heads=self._heads, tls=self._tls
            )
            return made, True
        except Unavailable as error:
            hint = hint_of_plain(str(self._address), str(error)) or hint_of_authority(str(error))
            raise (Unavailable(f"{error}{hint}") if hint else error).not_begun() from None

    def _ended_at_once(self, error: ConnectionLost) -> ConnectionLost:
        """Of a new connection: the server said nothing, or nothing in HTTP."""
        hint = hint_of_tls(str(self._address)) if str(error).endswith(" an answer") else ""
        return ConnectionLost(f"{self._address}: {error}{hint}", unprocessed=error.unprocessed)

    @asynccontextmanager
    async def _within(self, seconds: float | None) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise late(self._address) from None

    def _failure(self, response: Response, path: str, request_id: str = "") -> IsochroneError:
        place = f"{self._address}{path}"
        return http_failure(response.status, _texts(response), _body(response), place, request_id)


def _left(ends: float | None) -> float | None:
    """Seconds until then; a server wants a positive timeout."""
    return None if ends is None else max(0.001, ends - time.monotonic())


class _Figures:
    """Of one call: the time that it was not on the network."""

    __slots__ = ("_unsent_ns",)

    def __init__(self, unsent_ns: int = 0) -> None:
        self._unsent_ns = unsent_ns

    @contextmanager
    def unsent(self) -> Iterator[None]:
        begun = time.monotonic_ns()
        yield
        self._unsent_ns += time.monotonic_ns() - begun

    def noted(self, outputs: Outputs, sent: Sequence[bytes | memoryview], received: Response) -> Outputs:
        outputs.sent_bytes, outputs.received_bytes = sum(map(len, sent)), len(received.body)
        outputs.unsent_ns = self._unsent_ns
        return outputs


def _body(response: Response) -> bytes | memoryview:
    body = response.body
    return bytes(body) if isinstance(body, bytearray) else body


def _texts(response: Response) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
