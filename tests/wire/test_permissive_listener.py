"""A port that takes plain and encrypted connections, and clients that send neither."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from wire_fakes import HoldingRoute, OneRoute, echo

from development_ca import DevelopmentCa
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.connect import connect_http1
from isochrone.wire.listener import Listener
from isochrone.wire.permissive_server import PermissiveServer
from isochrone.wire.tls import server_context

Body = Callable[[Listener, int, ssl.SSLContext], Awaitable[None]]


def listening(tmp_path: Path, body: Body, *, permissive: bool = True, accepting: bool = True) -> None:
    ca = DevelopmentCa(tmp_path / "ca").issue("server", "127.0.0.1", client=True)
    certificate, key = ca.pair("server")

    async def run() -> None:
        tls = server_context(Path(certificate), Path(key), ca.ca, permissive=permissive)
        listener = Listener(OneRoute(HoldingRoute(echo)), WireLimits(), tls)
        port = await listener.start("127.0.0.1", 0, accepting=accepting)
        try:
            await body(listener, port, ca.context("server"))
        finally:
            await listener.stop(1)

    uvloop.run(run())


async def answers(port: int, context: ssl.SSLContext | None) -> int:
    connection = await connect_http1("127.0.0.1", port, tls=context)
    try:
        return (await connection.request(b"GET", b"/", ((b"host", b"a"),))).status
    finally:
        connection.close()


def test_both_kinds_are_answered(tmp_path: Path) -> None:
    async def body(listener: Listener, port: int, context: ssl.SSLContext) -> None:
        assert [await answers(port, each) for each in (context, None, context)] == [200] * 3
        # A handshake that fails is refused as on any port, and nothing else is lost by it.
        foreign = ssl.create_default_context()
        with pytest.raises(Exception, match="certificate verify failed"):
            await answers(port, foreign)
        assert await answers(port, None) == 200

    listening(tmp_path, body)


def test_required_refuses_plain_connections(tmp_path: Path) -> None:
    async def body(listener: Listener, port: int, context: ssl.SSLContext) -> None:
        assert await answers(port, context) == 200
        with pytest.raises(Exception):  # noqa: B017
            await answers(port, None)

    listening(tmp_path, body, permissive=False)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


def test_silent_and_hasty_clients_leave_nothing(tmp_path: Path) -> None:
    async def body(listener: Listener, port: int, context: ssl.SSLContext) -> None:
        server = listener._server
        assert isinstance(server, PermissiveServer)
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        await until(lambda: len(server._waiting) == 5)
        silent[0].close()
        await until(lambda: len(server._waiting) == 4)
        server._drop(next(iter(server._waiting)))  # as after the time for a first byte
        assert len(server._waiting) == 3
        assert await answers(port, None) == 200
        listener.close()
        assert not server._waiting
        for each in silent:
            each.close()

    listening(tmp_path, body)


def test_a_reserved_port_accepts_later(tmp_path: Path) -> None:
    async def body(listener: Listener, port: int, context: ssl.SSLContext) -> None:
        with pytest.raises(Exception, match="refused"):
            await answers(port, context)
        await listener.accept()
        assert await answers(port, context) == 200

    listening(tmp_path, body, accepting=False)
