"""Connecting for real, over loopback: our client sides to our listener, plain and with TLS, on both event loops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from isochrone.errors import Unavailable
from isochrone.wire.connect import connect_http1, connect_http2
from isochrone.wire.exchange import Exchange, Head, Route
from isochrone.wire.http2.client import request_block
from isochrone.wire.http2.grpc_client import unary
from isochrone.wire.http2.hpack import Encoder
from isochrone.wire.listening.listener import Listener
from isochrone.wire.receiver import Gathering
from isochrone.wire.tls.contexts import client_context, server_context

CERTIFICATES = Path(__file__).parent.parent / "wire" / "certificates"
CERTIFICATE, KEY = CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key"
PREFIX = Encoder().encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
SUFFIX = Encoder().encode([(b"grpc-status", b"0")])


class EchoRoute(Route):
    def handle(self, exchange: Exchange) -> None:
        stream: Any = exchange
        if exchange.head.target == b"/grpc":
            stream.respond_unary(PREFIX, bytes(exchange.body), len(exchange.body), SUFFIX)
        elif exchange.head.target == b"/stream":
            exchange.start(200, ())
            for _ in range(10):
                exchange.write([bytes(exchange.body)])
            exchange.end()
        else:
            exchange.respond(200, (), [bytes(exchange.body)])


class EchoApplication:
    def __init__(self) -> None:
        self._route = EchoRoute()

    def route(self, head: Head) -> Route:
        return self._route


@pytest.fixture(params=["uvloop", "asyncio"])
def serving(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a scenario against a listener, and sees that it stops with nothing left open."""

    def run(scenario: Callable[[int], Awaitable[None]], tls: ssl.SSLContext | None = None) -> None:
        async def main() -> None:
            listener = Listener(EchoApplication(), tls=tls)
            port = await listener.start("127.0.0.1", 0)
            await scenario(port)
            assert await listener.stop(5) == 0

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run


BODIES = [b"", b"small", bytes(range(256)) * 4096]


@pytest.mark.parametrize("secure", [False, True])
def test_http1(serving: Callable[..., None], secure: bool) -> None:
    async def scenario(port: int) -> None:
        tls = client_context(CERTIFICATE) if secure else None
        connection = await connect_http1("127.0.0.1", port, tls=tls)
        connected = connection.transport.get_extra_info("socket")
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for body in BODIES:
            response = await connection.request(b"POST", b"/", ((b"host", b"a"),), [body], timeout=60)
            assert (response.status, bytes(response.body)) == (200, body)
            response = await connection.request(b"POST", b"/stream", ((b"host", b"a"),), [body], timeout=60)
            assert bytes(response.body) == body * 10
        answers = [connection.request(b"POST", b"/", ((b"host", b"a"),), [body], timeout=60) for body in BODIES]
        assert [bytes(response.body) for response in await asyncio.gather(*answers)] == BODIES
        connection.close()

    serving(scenario, server_context(CERTIFICATE, KEY) if secure else None)


@pytest.mark.parametrize("secure", [False, True])
def test_http2(serving: Callable[..., None], secure: bool) -> None:
    async def scenario(port: int) -> None:
        tls = client_context(CERTIFICATE, http2=True) if secure else None
        connection = await connect_http2("127.0.0.1", port, tls=tls)
        for body in BODIES:
            assert await unary(connection, b"a", b"/grpc", body, timeout=60) == (body, ((b"grpc-status", b"0"),))
        calls = [unary(connection, b"a", b"/grpc", b"%d" % index, timeout=60) for index in range(300)]
        assert [message for message, _ in await asyncio.gather(*calls)] == [b"%d" % index for index in range(300)]
        receiver = Gathering(connection.loop, 1 << 30)
        connection.open(request_block(b"POST", b"http", b"a", b"/stream", ()), [BODIES[2]], receiver)
        async with asyncio.timeout(10):
            assert (await receiver.future).body == BODIES[2] * 10
        connection.close()

    serving(scenario, server_context(CERTIFICATE, KEY) if secure else None)


def test_a_server_that_speaks_no_http2_is_refused(serving: Callable[..., None]) -> None:
    # A server that does not refuse such a client, as ours does.
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE, KEY)
    tls.set_alpn_protocols(["http/1.1"])

    async def scenario(port: int) -> None:
        with pytest.raises(Unavailable, match="expected the server to choose h2"):
            await connect_http2("127.0.0.1", port, tls=client_context(CERTIFICATE, http2=True))

    serving(scenario, tls)


def test_nobody_there(serving: Callable[..., None]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        async def scenario(_: int) -> None:
            with pytest.raises(Unavailable, match=f"cannot connect to 127.0.0.1:{port}"):
                await connect_http1("127.0.0.1", port)

        serving(scenario)


def test_an_unknown_certificate_is_refused(serving: Callable[..., None]) -> None:
    async def scenario(port: int) -> None:
        with pytest.raises(Unavailable, match="certificate"):
            await connect_http1("127.0.0.1", port, tls=client_context())

    serving(scenario, server_context(CERTIFICATE, KEY))
