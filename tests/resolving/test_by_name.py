"""Connections by name: to the first address that accepts, to the last addresses while the name does not resolve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import httpx
import pytest
from structlog.testing import capture_logs

from isochrone.errors import Unavailable
from isochrone.resolving.http_transport import resolving_transport
from isochrone.resolving.resolver import Resolver
from isochrone.wire import connect

#: Nothing listens there on any port.
NOBODY = "127.0.0.98"


class Names:
    def __init__(self) -> None:
        self.found: list[str] = [NOBODY, "127.0.0.1"]
        self.error: OSError | None = None
        self.resolver = Resolver(self.look_up)

    def look_up(self, name: str) -> list[str]:
        if self.error is not None:
            raise self.error
        return self.found


def serving(test: Callable[[int], Coroutine[None, None, None]]) -> None:
    """Runs a test beside a small HTTP server; its port is given."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
        except (EOFError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            await test(server.sockets[0].getsockname()[1])

    with capture_logs():
        asyncio.run(run())


def test_a_connection_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names()
    monkeypatch.setattr(connect, "resolver", names.resolver)

    async def test(port: int) -> None:
        for error in (None, OSError(-3, "Temporary failure"), OSError(-3, "Temporary failure")):
            names.error = error
            connection = await connect.connect_http1("workers", port, timeout=30)
            assert (await connection.request(b"GET", b"/", ((b"host", b"workers"),))).status == 200
            connection.close()
        with pytest.raises(
            Unavailable, match=r"the name does not resolve \(Temporary failure\), so its last addresses"
        ):
            await connect.connect_http1("workers", 1, timeout=30)
        with pytest.raises(
            Unavailable, match="cannot connect to others:1: the name others does not resolve: Temporary"
        ):
            await connect.connect_http1("others", 1, timeout=30)

    serving(test)


def test_an_httpx_client() -> None:
    names = Names()

    async def test(port: int) -> None:
        for error in (None, OSError(-3, "Temporary failure"), OSError(-3, "Temporary failure")):
            names.error = error
            async with httpx.AsyncClient(transport=resolving_transport(names=names.resolver), timeout=30) as client:
                assert (await client.get(f"http://workers:{port}/")).text == "hi"
                assert (await client.get(f"http://127.0.0.1:{port}/")).text == "hi"
                with pytest.raises(httpx.ConnectError):
                    await client.get("http://workers:1/")
        async with httpx.AsyncClient(transport=resolving_transport(names=names.resolver), timeout=30) as client:
            with pytest.raises(httpx.ConnectError, match="the name others does not resolve: Temporary failure"):
                await client.get("http://others:1/")

    serving(test)
