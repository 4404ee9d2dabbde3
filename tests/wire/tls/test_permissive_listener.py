"""A port that takes plain and encrypted connections, and clients that send neither."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from wire_fakes import HoldingRoute, OneRoute, echo

from development_ca import DevelopmentCa
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.connect import connect_http1
from isochrone.wire.listening import listener as listener_module
from isochrone.wire.listening.listener import Listener
from isochrone.wire.tls import permissive_server
from isochrone.wire.tls.contexts import server_context
from isochrone.wire.tls.permissive_server import PermissiveServer

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
        assert await listener.stop(0) == 0
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


REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


def connected(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    return client


def test_clients_that_have_just_connected_get_an_answer_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, handshakes may take longer than in production.
    monkeypatch.setattr(listener_module, "_LAST_CHANCE", 3.0)

    async def body(listener: Listener, port: int, context: ssl.SSLContext) -> None:
        server = listener._server
        assert isinstance(server, PermissiveServer)
        plain, encrypted, silent, stuck = (connected(port) for _ in range(4))
        await until(lambda: len(server._waiting) == 4)
        stuck.send(b"\x16")
        await until(lambda: len(server._waiting) == 3 and len(server._tasks) == 1)
        stopping = asyncio.ensure_future(listener.stop(60))
        await until(lambda: listener.is_stopping)
        with pytest.raises(ConnectionRefusedError):
            connected(port)
        for client, tls, name in ((plain, None, None), (encrypted, context, "127.0.0.1")):
            reader, writer = await asyncio.open_connection(sock=client, ssl=tls, server_hostname=name)
            writer.write(REQUEST)
            # To the end of the connection: the client sends no other request over it.
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in answer.lower()
            writer.close()
        assert await stopping == 0
        assert server.beginning == 0
        for client in (silent, stuck):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
            client.close()

    listening(tmp_path, body)


@contextlib.contextmanager
def no_files_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("pause", [0.01, 600.0])
def test_connections_wait_while_the_process_has_no_files_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    monkeypatch.setattr(permissive_server, "_PAUSE", pause)

    async def body(listener: Listener, port: int, context: ssl.SSLContext) -> None:
        server, loop = listener._server, asyncio.get_running_loop()
        assert isinstance(server, PermissiveServer)
        client = connected(port)
        with no_files_left():
            await until(lambda: len(server._paused) == 1)
            if pause > 1:
                # The connection still waits in the kernel, and the loop does not look at it in its turns.
                ((listening_socket, first),) = server._paused.items()
                for _ in range(50):
                    await asyncio.sleep(0)
                assert server._paused[listening_socket] is first
        if pause > 1:
            first.cancel()
            server._resume(listening_socket)
        await loop.sock_sendall(client, REQUEST)
        assert (await loop.sock_recv(client, 100)).startswith(b"HTTP/1.1 200")
        client.close()

    listening(tmp_path, body)


def test_a_pause_ends_with_the_port(tmp_path: Path) -> None:
    async def body(listener: Listener, port: int, context: ssl.SSLContext) -> None:
        server = listener._server
        assert isinstance(server, PermissiveServer)
        listening_socket = server.sockets[0]
        pause = server._loop.call_later(60, server._resume, listening_socket)
        server._paused[listening_socket] = pause
        listener.close()
        assert pause.cancelled()
        assert not server._paused

    listening(tmp_path, body)
