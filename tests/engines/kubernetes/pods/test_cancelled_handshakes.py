"""A call that is cancelled in the middle of its TLS handshake leaves no socket open."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from isochrone.engines.kubernetes.pods.cluster_api import PODS, ClusterApi


class SilentServer:
    """Accepts connections, answers no handshake."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.hang_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        self.begun.set()
        await self.hang_up.wait()
        writer.close()
        await writer.wait_closed()


class Session:
    """What the engine uses of kr8s, over the HTTP library that kr8s uses."""

    def __init__(self, port: int) -> None:
        self._session = httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=False)

    @asynccontextmanager
    async def call_api(self, method: str, *, stream: bool = False, **given: Any) -> AsyncIterator[Any]:
        if stream:
            async with self._session.stream(method, "/", timeout=given.get("timeout")) as response:
                yield response
        else:
            yield await self._session.request(method, "/", timeout=given.get("timeout"))


async def cancelled(call: str) -> None:
    server = SilentServer()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    api = ClusterApi("default")
    api._api = Session(listener.sockets[0].getsockname()[1])

    async def watch() -> None:
        async for _ in api.watch(PODS, "", "1"):
            pass

    calling = asyncio.create_task(watch() if call == "watch" else api.delete(PODS, "one"))
    await server.begun.wait()
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    assert calling.cancelled()
    server.hang_up.set()
    await api.close()
    listener.close()
    await listener.wait_closed()


def test_a_watch_that_is_cancelled_in_its_handshake_leaves_no_socket() -> None:
    asyncio.run(cancelled("watch"))
    # A socket that is still open warns when it is collected, and the warning fails the test.
    gc.collect()


def test_a_call_that_is_cancelled_in_its_handshake_leaves_no_socket() -> None:
    asyncio.run(cancelled("delete"))
    gc.collect()
