"""Questions of the gateway's own to a worker, awaited: for health checks and control calls, never for inference."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isochrone.errors import DeadlineExceeded
from isochrone.wire.exchange import Buffer, Headers
from isochrone.wire.http1.client import request_head
from isochrone.wire.http2.client import request_block
from isochrone.wire.receiver import Gathering, Response

if TYPE_CHECKING:
    from isochrone.gateway.upstream.connections import Connections, Sent

#: Bytes an answer to such a question may have.
_MAX_ANSWER = 64 << 20


async def ask_http(
    connections: Connections,
    method: bytes,
    replica: bytes,
    headers: Headers = (),
    body: Sequence[Buffer] = (),
    seconds: float = 5.0,
) -> Response:
    """Raises ``ConnectionLost`` or ``DeadlineExceeded``."""
    receiver = Gathering(asyncio.get_running_loop(), _MAX_ANSWER)
    length = sum(len(part) for part in body)
    host = (b"host", connections.upstream.address.encode())
    head = request_head(method, replica, (host, *headers), length)
    sent = connections.send(head, body, receiver)
    response = await _await(receiver, sent, connections.upstream.address, seconds)
    connections.release(sent)
    return response


async def ask_grpc(
    connections: Connections, path: bytes, message: Buffer, headers: Headers = (), seconds: float = 5.0
) -> Response:
    """``message`` with its prefix, as it came; so is the answer's body. Raises as ``ask_http`` does."""
    receiver = Gathering(asyncio.get_running_loop(), _MAX_ANSWER)
    fields: Headers = ((b"te", b"trailers"), (b"content-type", b"application/grpc"), *headers)
    block = request_block(b"POST", connections.scheme, connections.upstream.address.encode(), path, fields)
    sent = connections.open_stream(block, [message], receiver)
    return await _await(receiver, sent, connections.upstream.address, seconds)


async def _await(receiver: Gathering, sent: Sent, address: str, seconds: float) -> Response:
    try:
        async with asyncio.timeout(seconds):
            return await receiver.future
    except TimeoutError:
        sent.cancel()
        raise DeadlineExceeded(f"worker {address}: no answer within {seconds:g} s") from None
    except asyncio.CancelledError:
        sent.cancel()
        raise
