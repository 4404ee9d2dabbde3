"""Workers for tests of xDS, as far as their index goes. They can stand still, answer nonsense, stop, and end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from isochrone.control.state.process_records import WorkerRecord

LIMIT = 30.0


class IndexWorker:
    """``served``: version → digest of the model ``solo``."""

    def __init__(self, **served: str) -> None:
        self.served = {version.removeprefix("v"): digest for version, digest in served.items()}
        #: Instead of the index.
        self.body: bytes | None = None
        self.is_ready = True
        #: Cleared: it takes calls and does not answer.
        self.moves = asyncio.Event()
        self.moves.set()
        #: Calls of each path that were answered.
        self.calls: dict[str, int] = {}
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    def record(self, name: str, **fields: str) -> WorkerRecord:
        return WorkerRecord(name, "127.0.0.1", self.port, self.port, **fields)  # type: ignore[arg-type]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def end(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._connections:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            await self.moves.wait()
            self.calls[path] = self.calls.get(path, 0) + 1
            rows = [
                {"name": "solo", "version": key, "state": "READY", "digest": self.served[key]} for key in self.served
            ]
            body = json.dumps(rows).encode() if self.body is None else self.body
            if path == "/v2/repository/index":
                status = "200 OK"
            else:
                status, body = "200 OK" if self.is_ready else "503 Unavailable", b""
            answer = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            writer.write(answer + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()


@asynccontextmanager
async def running(*workers: IndexWorker) -> AsyncIterator[None]:
    for worker in workers:
        await worker.start()
    try:
        async with asyncio.timeout(LIMIT):
            yield
    finally:
        for worker in workers:
            worker.moves.set()
            await worker.end()


async def until(holds: Callable[[], object]) -> None:
    """Of things on this loop."""
    while True:
        if holds():
            return
        await asyncio.sleep(0.005)
