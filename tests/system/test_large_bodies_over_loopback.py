"""Large bodies between our client sides and our listener over loopback: plain and with TLS, on both event loops.

Over TLS no connection receives directly: its transport keeps what a small buffer has no room for.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from pathlib import Path
from typing import Any

import pytest
import uvloop

from isochrone.wire.connect import connect_http1, connect_http2
from isochrone.wire.exchange import Exchange, Head, Route
from isochrone.wire.http2.grpc_client import unary
from isochrone.wire.http2.hpack import Encoder
from isochrone.wire.listening.listener import Listener
from isochrone.wire.tls.contexts import client_context, server_context

CERTIFICATES = Path(__file__).parent.parent / "wire" / "certificates"
CERTIFICATE, KEY = CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key"
PREFIX = Encoder().encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
SUFFIX = Encoder().encode([(b"grpc-status", b"0")])
SIZES = (100, 300_000, 150_000, 65_530, 70_000, 20_000, 3_000_000, 1, 1_048_571, 400_000)


class HashRoute(Route):
    """Answers with the hash of the body; keeps bodies, as a batch does, and checks them again."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, bytes]] = []

    def handle(self, exchange: Exchange) -> None:
        body = exchange.body
        found = hashlib.sha256(body).digest()
        self.kept.append((memoryview(body)[5:], hashlib.sha256(memoryview(body)[5:]).digest()))
        if len(self.kept) > 7:
            view, before = self.kept.pop(len(self.kept) // 2)
            assert hashlib.sha256(view).digest() == before
        if exchange.head.is_http2:
            stream: Any = exchange
            stream.respond_unary(PREFIX, b"\0\0\0\0\x20" + found, len(found) + 5, SUFFIX)
        else:
            exchange.respond(200, (), [found])


class OneRoute:
    def __init__(self, route: Route) -> None:
        self._route = route

    def route(self, head: Head) -> Route:
        return self._route


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_large_bodies_arrive_intact_and_directly(loop: str, secure: bool, protocol: str) -> None:
    route = HashRoute()

    async def call(connection: Any, message: bytes) -> None:
        if protocol == "http2":
            answer, _ = await unary(connection, b"a", b"/", message, timeout=60)
            whole = b"\0" + len(message).to_bytes(4, "big") + message
        else:
            response = await connection.request(b"POST", b"/", ((b"host", b"a"),), [message], timeout=60)
            answer, whole = bytes(response.body), message
        assert answer == hashlib.sha256(whole).digest()

    async def main() -> None:
        listener = Listener(OneRoute(route), tls=server_context(CERTIFICATE, KEY) if secure else None)
        port = await listener.start("127.0.0.1", 0)
        tls = client_context(CERTIFICATE, http2=protocol == "http2") if secure else None
        connect: Any = connect_http2 if protocol == "http2" else connect_http1
        connections = [await connect("127.0.0.1", port, tls=tls) for _ in range(2)]
        try:
            await exchange_bodies(connections, listener)
        finally:
            # uvloop's loop waits on its close for connections over TLS that are still open.
            for each in connections:
                each.close()
            assert await listener.stop(5) == 0
        for view, before in route.kept:
            assert hashlib.sha256(view).digest() == before
        assert listener.budget.held == 0

    async def exchange_bodies(connections: list[Any], listener: Listener) -> None:
        for seed in range(3):
            messages = [random.Random(seed + size).randbytes(size) for size in SIZES]
            await asyncio.gather(*(call(each, message) for each in connections for message in messages))
        served: Any = list(listener.connections)
        assert [connection.receiver is not None for connection in served] == [not secure] * 2
        # Small messages give the transport back.
        for _ in range(20):
            await call(connections[0], b"small")
        assert sorted(connection.receiver is not None for connection in served) == [False, not secure]
        await call(connections[0], bytes(500_000))

    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
