"""Load on a fleet from a thread of the test: the clients of the proof, their history in memory, checked at the end.

``wait_answers`` makes a test independent of time: it goes on when requests have really come back. Must never end with a
request that is not on record.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

from bench.control.checker import Commit, check
from bench.control.clients import Pilot
from bench.control.flights import Crew
from bench.control.history import ERROR, OK, Answer, HistoryWriter
from bench.control.http_transport import HttpTransport
from bench.control.models import CHAIN, PIPELINES, SOLO

_LIMIT = 120.0


class _Memory(HistoryWriter):
    """A history that is not written anywhere."""

    def __init__(self) -> None:
        self.begun = 0
        self.answers: list[Answer] = []

    def begin(self) -> None:
        self.begun += 1

    def add(self, answer: Answer) -> None:
        self.answers.append(answer)

    def close(self) -> None:
        assert self.begun == len(self.answers), "requests that are not on record"


class FleetLoad:
    """``with FleetLoad(gateways) as load``; the history is complete when the block has ended."""

    def __init__(
        self, gateways: Sequence[str], rate: float = 60.0, models: Sequence[str] = (SOLO, CHAIN), agents: int = 0
    ) -> None:
        self._gateways = list(gateways)
        self._rate = rate
        self._models = list(models)
        self._agents = agents
        self._memory = _Memory()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._fly()), name="load")

    def __enter__(self) -> FleetLoad:
        self._thread.start()
        assert self._started.wait(_LIMIT)
        self.wait_answers()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._pilot.stopping.set)
        self._thread.join(_LIMIT)
        assert not self._thread.is_alive(), "the clients wait for answers"

    def wait_answers(self, count: int = 10) -> None:
        """Until so many requests that were sent from now on have been answered well."""
        since = time.monotonic_ns()
        ends = time.monotonic() + _LIMIT
        while sum(answer.started_ns >= since and answer.outcome == OK for answer in self.history[-5000:]) < count:
            assert time.monotonic() < ends, f"no answers; the last: {self.history[-3:]}"
            time.sleep(0.02)

    @property
    def history(self) -> list[Answer]:
        return list(self._memory.answers)

    @property
    def failed(self) -> list[Answer]:
        return [answer for answer in self.history if answer.outcome == ERROR]

    def versions(self, model: str) -> set[str]:
        return {answer.version for answer in self.history if answer.model == model and answer.outcome == OK}

    def check(self, commits: Sequence[Commit]) -> None:
        """Every answer is explained by these commits, in the order they promise."""
        violations = check(self.history, commits, PIPELINES)
        assert not violations, "\n".join(map(str, violations[:10]))

    async def _fly(self) -> None:
        self._loop = asyncio.get_running_loop()
        crew = Crew("test", self._memory)
        self._pilot = pilot = Pilot(crew, self._gateways, self._models, seed=1, retry=True, agents=self._agents)
        pilot.transport = HttpTransport(crew, pilot.landed, self._gateways, 2)
        await pilot.transport.open()
        sweeping = self._loop.create_task(pilot.sweep())
        self._started.set()
        try:
            await pilot.open_loop(self._rate)
            await pilot.land()
        finally:
            sweeping.cancel()
            await pilot.transport.close()
        self._memory.close()
