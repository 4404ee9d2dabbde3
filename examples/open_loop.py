"""A load generator that does not wait: requests are due at random instants, whatever became of those before.

A request's latency counts from the instant it was due, so a server that falls behind cannot hide it by being asked
less often. Every policy gets the same instants, from one seed.
"""

from __future__ import annotations

import asyncio
import random
from time import perf_counter_ns

from closed_loop import Connection, Tally

#: Opened before the first request is due.
_CONNECTIONS = 32
#: Seconds that what is under way at the end gets.
_GRACE = 5.0


class Caller(Connection):
    """A connection that asks when it is told to, and is idle in between."""

    def __init__(self, idle: list[Caller], tally: Tally) -> None:
        super().__init__(iter(()), tally)
        self._idle = idle

    def _send(self) -> None:
        if self.stopping:
            self._transport.close()
        else:
            self._idle.append(self)

    def ask(self, request: bytes, due: int) -> None:
        self._sent_at = due
        self._transport.write(request)

    def stop(self) -> None:
        """Closes it, now or after the answer it waits for."""
        self.stopping = True
        if self in self._idle:
            self._transport.close()


async def pace(port: int, request: bytes, rate: float, seconds: float, tally: Tally) -> None:
    """Sends the request ``rate`` times a second (Poisson) for so many seconds."""
    loop = asyncio.get_running_loop()
    idle: list[Caller] = []
    callers: list[Caller] = []
    tasks: set[asyncio.Task[Caller]] = set()

    async def connect() -> Caller:
        _, caller = await loop.create_connection(lambda: Caller(idle, tally), "127.0.0.1", port)
        callers.append(caller)
        return caller

    async def connect_and_ask(due: int) -> Caller:
        caller = await connect()
        idle.remove(caller)
        caller.ask(request, due)
        return caller

    for _ in range(_CONNECTIONS):
        await connect()
    draws = random.Random(1)
    begin = due = perf_counter_ns()
    while True:
        due += int(draws.expovariate(rate) * 1e9)
        if due - begin > seconds * 1e9:
            break
        await asyncio.sleep(max(0.0, (due - perf_counter_ns()) / 1e9))
        if idle:
            idle.pop().ask(request, due)
        else:
            task = asyncio.ensure_future(connect_and_ask(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    for caller in callers:
        caller.stop()
    await asyncio.wait([caller.closed for caller in callers], timeout=_GRACE)
    for caller in callers:
        caller.give_up()
