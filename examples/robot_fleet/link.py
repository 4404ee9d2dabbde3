"""A TCP relay as a network link that is slow, stalls and is cut: ``python examples/robot_fleet/link.py HOST:PORT``.

Listens on a free port of loopback, which it prints, and passes bytes on in both directions after ``delay`` seconds and
up to ``jitter`` more, in their order. While it is stalled nothing passes and no connection is completed, as with
packets that are lost; what was sent arrives when it resumes, as TCP's retransmissions do. ``cut`` ends all connections
and refuses new ones. As a script it reads a line for each change from stdin: ``good``, ``slow DELAY_MS JITTER_MS``,
``stall``, ``cut``; it ends with stdin.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from types import TracebackType
from typing import Self


class Link:
    """``async with Link(host, port) as link``: reach the server at ``127.0.0.1:{link.port}``."""

    def __init__(self, host: str, port: int, seed: int = 0) -> None:
        self.port = 0
        self.delay = 0.0
        self.jitter = 0.0
        self.is_stalled = False
        self.is_cut = False
        self._to = (host, port)
        self._random = random.Random(seed)
        self._ends: set[_End] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._resumed = asyncio.Event()

    def good(self) -> None:
        self._set(0.0, 0.0)

    def slow(self, delay: float, jitter: float) -> None:
        self._set(delay, jitter)

    def stall(self) -> None:
        self.is_stalled = True
        self._resumed.clear()

    def cut(self) -> None:
        self.is_cut = True
        self._resumed.set()
        for end in list(self._ends):
            end.abort()

    def _set(self, delay: float, jitter: float) -> None:
        self.delay, self.jitter = delay, jitter
        self.is_stalled = self.is_cut = False
        self._resumed.set()
        for end in self._ends:
            end.resume()

    def takes(self) -> float:
        """Seconds for the next bytes."""
        return self.delay + self.jitter * self._random.random()

    def opened(self, near: _End) -> None:
        if self.is_cut:
            near.abort()
            return
        self._ends.add(near)
        task = asyncio.get_running_loop().create_task(self._open(near))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, near: _End) -> None:
        await asyncio.sleep(self.takes())
        if self.is_stalled:
            await self._resumed.wait()
        if near.is_closed:
            return
        try:
            _, far = await asyncio.get_running_loop().create_connection(lambda: _End(self), *self._to)
        except OSError:
            near.abort()
            return
        self._ends.add(far)
        near.join(far)
        if self.is_cut:
            near.abort()

    def closed(self, end: _End) -> None:
        self._ends.discard(end)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(lambda: _End(self, is_near=True), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        tasks = list(self._opening)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in list(self._ends):
            end.abort()
        await asyncio.sleep(0)
        await self._server.wait_closed()


class _End(asyncio.Protocol):
    """One end of a connection; what it receives leaves at its peer."""

    def __init__(self, link: Link, *, is_near: bool = False) -> None:
        self._link = link
        self._is_near = is_near
        self._peer: _End | None = None
        #: (when it leaves, bytes; none: the end of the connection).
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None

    @property
    def is_closed(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def join(self, far: _End) -> None:
        self._peer, far._peer = far, self
        self.resume()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        if self._is_near:
            self._link.opened(self)

    def data_received(self, data: bytes) -> None:
        link = self._link
        if self._peer is not None and not self._waiting and not link.is_stalled and not (link.delay or link.jitter):
            self._pass_on(data)
            return
        self._waiting.append((self._loop.time() + link.takes(), data))
        self.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.closed(self)
        self._waiting.append((self._loop.time() + self._link.takes(), b""))
        self.resume()

    def resume(self) -> None:
        """Pass on what is due, if the link lets it."""
        while self._waiting and self._peer is not None and not self._link.is_stalled:
            due, data = self._waiting[0]
            if due > self._loop.time():
                if self._timer is None:
                    self._timer = self._loop.call_at(due, self._timed)
                return
            self._waiting.popleft()
            self._pass_on(data)

    def _timed(self) -> None:
        self._timer = None
        self.resume()

    def _pass_on(self, data: bytes) -> None:
        assert self._peer is not None
        assert self._peer.transport is not None
        if data:
            self._peer.transport.write(data)
        else:
            self._peer.transport.close()

    def abort(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for end in (self, self._peer):
            if end is not None and end.transport is not None:
                end._waiting.clear()
                end.transport.abort()


async def main(address: str) -> None:
    host, _, port = address.rpartition(":")
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with Link(host, int(port)) as link:
        print(link.port, flush=True)
        while line := (await reader.readline()).decode().split():
            match line:
                case ["slow", delay, jitter]:
                    link.slow(float(delay) / 1000, float(jitter) / 1000)
                case [("good" | "stall" | "cut") as change]:
                    getattr(link, change)()
                case _:
                    sys.exit(f"link: expected good, slow DELAY_MS JITTER_MS, stall or cut, given {' '.join(line)!r}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: link.py HOST:PORT")
    asyncio.run(main(sys.argv[1]))
