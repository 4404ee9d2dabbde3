"""Sends over gRPC: calls share a few HTTP/2 connections, each as many as the server allows.

A unary call is ModelInfer. A stream is a ModelStreamInfer of one request: its first response is the first token.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from isochrone.bench.results.outcomes import FAILED, OK
from isochrone.bench.sending.pool import ConnectionPool
from isochrone.bench.sending.sender import Done, outcome_of_grpc, shortened
from isochrone.bench.workload.mix import Kind
from isochrone.client.address import Address
from isochrone.client.calls import InferCall
from isochrone.client.http.requests import LIMITS
from isochrone.errors import DeadlineExceeded, IsochroneError, QueueFull, Unavailable
from isochrone.wire.connect import connect_http2
from isochrone.wire.exchange import Buffer, Headers
from isochrone.wire.http2.client import ClientStream, Http2ClientConnection, request_block
from isochrone.wire.http2.grpc_client import grpc_frame_prefix, grpc_timeout

_INFER = b"/inference.GRPCInferenceService/ModelInfer"
_STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"
_STATUS = b"grpc-status"
_OK = b"0"
_NO_STATUS = -1
#: The first byte of a response in a stream that is an error: field 1 of ModelStreamInferResponse, a string.
_ERROR_FIELD = 0x0A


class GrpcRequest(NamedTuple):
    block: bytes
    #: The message with its prefix.
    payload: bytes
    is_stream: bool


def infer_request(call: InferCall, kind: Kind, address: Address) -> GrpcRequest:
    # Imported here: the messages take a fifth of a second to import.
    from isochrone.client.grpc.codec import encode_infer

    message = encode_infer(call).SerializeToString()
    headers: Headers = ((b"te", b"trailers"), (b"content-type", b"application/grpc"))
    if kind.deadline_ms is not None:
        headers = (*headers, (b"grpc-timeout", grpc_timeout(kind.deadline_ms / 1000)))
    headers = (*headers, *((name.encode(), value.encode("latin-1")) for name, value in call.headers.items()))
    scheme = b"https" if address.is_secure else b"http"
    path = _STREAM if kind.stream else _INFER
    block = request_block(b"POST", scheme, address.authority.encode(), path, headers)
    return GrpcRequest(block, grpc_frame_prefix.pack(0, len(message)) + message, kind.stream)


class GrpcSender(ConnectionPool[Http2ClientConnection]):
    """``limit``: most calls in flight. ``connections``: made by ``open``, and made again when one is lost."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, limit: int, connections: int) -> None:
        super().__init__(connections, connections)
        self._address = address
        self._tls = tls
        self._limit = limit
        self._next = 0
        self._in_flight = 0

    def send(self, request: GrpcRequest, done: Done) -> _GrpcCall:
        call = _GrpcCall(self, request, done)
        self.submit(call)
        return call

    def ended(self) -> None:
        """A call that was sent has ended."""
        self._in_flight -= 1
        self.serve_waiting()

    # As the pool needs it.

    def take(self) -> Http2ClientConnection | None:
        """The next connection in turn that accepts one more call."""
        if self._in_flight >= self._limit:
            return None
        count = len(self.connections)
        for _ in range(count):
            self._next = (self._next + 1) % count
            connection = self.connections[self._next]
            if connection.is_reusable and connection.has_room:
                self._in_flight += 1
                return connection
        return None

    async def connect(self) -> Http2ClientConnection:
        return await connect_http2(self._address.host, self._address.port, limits=LIMITS, tls=self._tls)

    def added(self, connection: Http2ClientConnection) -> None:
        connection.on_going_away = lambda: self.lost(connection)


class _GrpcCall:
    """One call, and the receiver of its answer."""

    __slots__ = ("_done", "_headers", "_http_status", "_request", "_responses", "_sender", "_stream")

    def __init__(self, sender: GrpcSender, request: GrpcRequest, done: Done) -> None:
        self._sender = sender
        self._request = request
        #: None: ended or given up.
        self._done: Done | None = done
        self._stream: ClientStream | None = None
        self._http_status = 0
        self._headers: Headers = ()
        self._responses = _Responses() if request.is_stream else None

    def begin(self, connection: Http2ClientConnection) -> None:
        if self._done is not None:
            self._done.sent()
        self._stream = connection.open_whole(self._request.block, self._request.payload, self)

    def cancel(self) -> None:
        if self._done is None:
            return
        self._done = None
        if self._stream is None:
            self._sender.forget(self)
        else:
            self._stream.cancel()
            self._sender.ended()

    def fail(self, error: str) -> None:
        done, self._done = self._done, None
        if done is not None:
            done.ended(FAILED, error)

    # Called by the connection.

    def whole(self, status: int, headers: Headers, data: Buffer, trailers: Headers) -> None:
        self.head(status, headers)
        self.data(data)
        self.complete(trailers)

    def head(self, status: int, headers: Headers) -> None:
        self._http_status, self._headers = status, headers

    def data(self, data: Buffer) -> None:
        done = self._done
        if done is None:
            return
        if self._responses is None or self._responses.feed(bytes(data)):
            done.begun()

    def complete(self, trailers: Headers) -> None:
        done, self._done = self._done, None
        self._sender.ended()
        if done is None:
            return
        # An error may arrive as one block, with its status among the headers ("trailers-only").
        status, text = _status_of(trailers or self._headers)
        if status == _NO_STATUS:
            done.ended(FAILED, f"not a gRPC answer: HTTP status {self._http_status}, no grpc-status")
        elif status:
            done.ended(outcome_of_grpc(status) or FAILED, f"gRPC status {status}: {text}")
        elif self._responses is not None:
            done.ended(*self._responses.ending())
        else:
            done.ended(OK, "")

    def failed(self, error: IsochroneError) -> None:
        done, self._done = self._done, None
        self._sender.ended()
        if done is not None:
            done.ended(FAILED, shortened(str(error)))


def _status_of(fields: Headers) -> tuple[int, str]:
    for name, value in fields:
        if name == _STATUS:
            if value == _OK:
                return 0, ""
            text = unquote_to_bytes(dict(fields).get(b"grpc-message", b"")).decode("utf-8", "replace")
            return int(value) if value.isdigit() else _NO_STATUS, shortened(text) or "no explanation"
    return _NO_STATUS, ""


class _Responses:
    """The messages of a stream, as far as outcomes need them."""

    __slots__ = ("_count", "_error", "_outcome", "_unread")

    def __init__(self) -> None:
        self._unread = b""
        self._count = 0
        self._outcome = OK
        self._error = ""

    def feed(self, data: bytes) -> bool:
        """Read bytes; whether the first response is among them."""
        before = self._count
        unread = self._unread + data
        position = 0
        while len(unread) - position >= 5:
            _, length = grpc_frame_prefix.unpack_from(unread, position)
            if len(unread) - position - 5 < length:
                break
            self._message(unread[position + 5 : position + 5 + length])
            position += 5 + length
        self._unread = unread[position:]
        return before == 0 and self._count > 0

    def ending(self) -> tuple[int, str]:
        if self._outcome == OK and not self._count:
            return FAILED, "the stream ended without a response"
        return self._outcome, self._error

    def _message(self, message: bytes) -> None:
        if message[:1] and message[0] == _ERROR_FIELD:
            from tritonclient.grpc import service_pb2

            from isochrone.client.grpc.failures import stream_failure

            text = service_pb2.ModelStreamInferResponse.FromString(message).error_message
            error = stream_failure(text, "")
            rejected = isinstance(error, DeadlineExceeded | QueueFull | Unavailable)
            self._outcome = outcome_of_grpc(error.grpc_status) if rejected else FAILED
            self._error = shortened(text)
        else:
            self._count += 1
