"""An open-loop load generator: requests are due at random instants, independent of earlier answers.

Latency counts from the instant at which a request was due, so a server that falls behind cannot hide it. Every policy
gets the same instants, from one seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from time import perf_counter_ns

from closed_loop import Connection, Tally

#: Connections opened before the first request is due, and at most.
_FIRST, _MOST = 32, 512
#: Seconds that requests in flight get at the end.
_GRACE = 5.0


class OpenLoop:
    """One request, sent repeatedly; at most one in flight per connection."""

    def __init__(self, port: int, request: bytes, tally: Tally) -> None:
        self.request = request
        self.tally = tally
        self.idle: list[Caller] = []
        #: Instants of requests that wait for a connection.
        self.waiting: deque[int] = deque()
        self._port = port
        self._callers: list[Caller] = []
        self._connecting: set[asyncio.Task[None]] = set()

    async def run(self, rate: float, seconds: float) -> None:
        """``rate`` requests a second on average (Poisson) for ``seconds``."""
        for _ in range(_FIRST):
            await self._connect()
        draws = random.Random(1)
        begin = due = perf_counter_ns()
        while True:
            due += int(draws.expovariate(rate) * 1e9)
            if due - begin > seconds * 1e9:
                break
            await asyncio.sleep(max(0.0, (due - perf_counter_ns()) / 1e9))
            if self.idle:
                self.idle.pop().ask(due)
                continue
            self.waiting.append(due)
            if len(self._callers) + len(self._connecting) < _MOST:
                task = asyncio.ensure_future(self._connect())
                self._connecting.add(task)
                task.add_done_callback(self._connecting.discard)
        await asyncio.gather(*self._connecting)
        for caller in self._callers:
            caller.stop()
        await asyncio.wait([caller.closed for caller in self._callers], timeout=_GRACE)
        for caller in self._callers:
            caller.give_up()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, caller = await loop.create_connection(lambda: Caller(self), "127.0.0.1", self._port)
        self._callers.append(caller)


class Caller(Connection):
    """A connection that sends a request when one is due, and is idle in between."""

    def __init__(self, load: OpenLoop) -> None:
        super().__init__(iter(()), load.tally)
        self._load = load

    def _send(self) -> None:
        if self._load.waiting:
            self.ask(self._load.waiting.popleft())
        elif self.stopping:
            self._transport.close()
        else:
            self._load.idle.append(self)

    def ask(self, due: int) -> None:
        self._sent_at = due
        self._transport.write(self._load.request)

    def stop(self) -> None:
        """Close it, now or after the answer that it waits for."""
        self.stopping = True
        if self in self._load.idle:
            self._transport.close()
