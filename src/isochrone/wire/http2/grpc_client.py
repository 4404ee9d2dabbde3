"""Unary gRPC calls over an HTTP/2 client connection, as a coroutine. Messages are bytes.

A failed call raises the error that corresponds to the gRPC status.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from urllib.parse import unquote_to_bytes

from isochrone import errors
from isochrone.errors import DeadlineExceeded, Internal, IsochroneError, PayloadTooLarge, Unsupported
from isochrone.wire.exchange import Headers
from isochrone.wire.http2.client import Http2ClientConnection, request_block
from isochrone.wire.receiver import Gathering, Response

#: Of a message: whether it is compressed, and its length.
grpc_frame_prefix = Struct(">BI")
_BY_STATUS: dict[int, type[IsochroneError]] = {
    errors.GRPC_CANCELLED: errors.Cancelled,
    errors.GRPC_INVALID_ARGUMENT: errors.InvalidArgument,
    errors.GRPC_DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    errors.GRPC_NOT_FOUND: errors.NotFound,
    errors.GRPC_ALREADY_EXISTS: errors.AlreadyExists,
    errors.GRPC_RESOURCE_EXHAUSTED: errors.QueueFull,
    errors.GRPC_UNIMPLEMENTED: errors.Unsupported,
    errors.GRPC_UNAVAILABLE: errors.Unavailable,
}


def grpc_timeout(seconds: float) -> bytes:
    """The ``grpc-timeout`` value: at most eight digits, in the finest possible unit."""
    for unit, scale in ((b"n", 1e9), (b"u", 1e6), (b"m", 1e3), (b"S", 1.0)):
        amount = max(1, int(seconds * scale))
        if amount < 100_000_000:
            return b"%d%s" % (amount, unit)
    return b"99999999S"


async def unary(
    connection: Http2ClientConnection,
    authority: bytes,
    path: bytes,
    message: bytes,
    headers: Headers = (),
    timeout: float | None = None,  # noqa: ASYNC109 (sent to the server as the call's deadline)
) -> tuple[bytes, Headers]:
    """Call ``path``; returns the answer's message and trailers, or raises the error of its status."""
    scheme = b"https" if connection.transport.get_extra_info("ssl_object") is not None else b"http"
    fields: Headers = ((b"te", b"trailers"), (b"content-type", b"application/grpc"), *headers)
    if timeout is not None:
        fields = (*fields, (b"grpc-timeout", grpc_timeout(timeout)))
    block = request_block(b"POST", scheme, authority, path, fields)
    receiver = Gathering(connection.loop, connection.limits.max_body_bytes)
    stream = connection.open(block, [grpc_frame_prefix.pack(0, len(message)), message], receiver)
    try:
        async with asyncio.timeout(timeout):
            response = await receiver.future
    except TimeoutError:
        raise DeadlineExceeded(f"no answer within timeout ({timeout:g} s)") from None
    finally:
        stream.cancel()
    return message_of_response(response)


def message_of_response(response: Response) -> tuple[bytes, Headers]:
    """A unary answer's message and trailers; raises the error of its status."""
    # An error may arrive as one block, with its status among the headers ("trailers-only").
    trailers = response.trailers or response.headers
    fields = dict(trailers)
    status = fields.get(b"grpc-status", b"")
    if response.status != 200 or not status.isdigit():
        raise Internal(f"not a gRPC answer: HTTP status {response.status}, grpc-status {status!r}")
    if int(status):
        text = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode("utf-8", "replace")
        if int(status) == errors.GRPC_RESOURCE_EXHAUSTED and "max_" in text:
            raise PayloadTooLarge(text)
        raise _BY_STATUS.get(int(status), Internal)(text)
    body = response.body
    if len(body) < 5:
        raise Internal(f"the answer's message has {len(body)} bytes, expected at least 5")
    compressed, length = grpc_frame_prefix.unpack_from(body)
    if compressed:
        raise Unsupported("the answer's message is compressed, which was not requested")
    if length != len(body) - 5:
        raise Internal(f"the answer's message announces {length} bytes, given {len(body) - 5}")
    return bytes(memoryview(body)[5:]), trailers
