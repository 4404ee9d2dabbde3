"""A TCP relay as a link between two workers: delay, bandwidth, silence and cuts, changed while requests are under way.

Runs in a thread of its own. The bandwidth is that of the link: all connections of one direction share it.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

_CHUNK = 1 << 14
_SMALL = 1 << 12


class EmulatedLink:
    """``with EmulatedLink(port) as link``: reach the server through ``link.address``."""

    def __init__(self, port: int) -> None:
        self.port = 0
        #: Seconds of one way, and bytes per second of each direction; None: no bound.
        self.delay = 0.0
        self.rate: float | None = None
        self._target = port
        self._is_cut = False
        self._free_at = [0.0, 0.0]
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Ends all connections, and refuses new ones."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._abort_all)

    def silence(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def hold_large(self) -> None:
        """Only small messages pass: a larger one stays where it is, with all that follows on its connection."""
        self._loop.call_soon_threadsafe(self._large_flow.clear)

    def mend(self) -> None:
        self.delay, self.rate, self._is_cut = 0.0, None, False
        self._loop.call_soon_threadsafe(self._flows.set)
        self._loop.call_soon_threadsafe(self._large_flow.set)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.mend()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _serve(self) -> None:
        self._loop.run_until_complete(self._run())
        self._loop.close()

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        self._flows = asyncio.Event()
        self._flows.set()
        self._large_flow = asyncio.Event()
        self._large_flow.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        self._abort_all()
        # Without connections, all of them end by themselves.
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    def _abort_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        await asyncio.sleep(self.delay * 2)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(self._pass(reader, far_writer, 0), self._pass(far_reader, writer, 1))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: int) -> None:
        """The bytes leave in order, each chunk when the link has carried it."""
        self._writers.add(writer)
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.ensure_future(self._send(under_way, writer))
        try:
            while data := await reader.read(_CHUNK):
                if len(data) > _SMALL:
                    await self._large_flow.wait()
                now = self._loop.time()
                carried = max(now, self._free_at[direction]) if self.rate else now
                if self.rate:
                    carried += len(data) / self.rate
                    self._free_at[direction] = carried
                    # Like the buffer of a link: the sender waits while it is full.
                    await asyncio.sleep(max(0.0, carried - now - 0.05))
                under_way.put_nowait((carried + self.delay, data))
        except OSError:
            pass
        finally:
            under_way.put_nowait((0.0, b""))
            await sender
            self._writers.discard(writer)

    async def _send(self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due, data = await under_way.get()
            await self._flows.wait()
            if not data:
                writer.transport.abort() if writer.is_closing() else writer.close()
                return
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            writer.write(data)
