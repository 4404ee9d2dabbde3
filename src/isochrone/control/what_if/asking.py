"""Asks a question about the running fleet: reads its workers, and gives the situation to whoever simulates it.

A reading asks every worker and gateway for pages. Callers share one for a moment, however many they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Protocol, TypeAlias

from isochrone.control.figures.history import History
from isochrone.control.scaling.reading.fleet_counters import FleetReading
from isochrone.control.scaling.reading.fleet_reading import FleetReader
from isochrone.control.state.view import View
from isochrone.control.what_if.answers import WhatIfAnswer
from isochrone.control.what_if.reading import require_fleet, situation_of
from isochrone.control.what_if.situation import Situation

#: Readings of the fleet for one situation: each asks a worker for some tens of configurations that are not known yet.
_READINGS = 4
#: Seconds that a situation is shared for.
_SHARED_SECONDS = 2.0

#: Reads the situation when it is needed.
ReadSituation: TypeAlias = Callable[[], Awaitable[Situation]]


class Simulator(Protocol):
    """Answers questions without holding the loop up."""

    async def answer(
        self, situation: ReadSituation, questions: Sequence[str], seed: int = 1, seconds: float | None = None
    ) -> WhatIfAnswer:
        """``situation`` is asked when the question's turn has come. Raises ``InvalidArgument`` for questions that
        cannot be read or that the situation cannot have, and ``QueueFull`` if there are too many at once."""
        ...


class SharedSituation:
    """The situation of the running fleet, read at most once in a while, and once at a time."""

    def __init__(self, read: ReadSituation, clock: Callable[[], float] = monotonic) -> None:
        self._read = read
        self._clock = clock
        self._reading = asyncio.Lock()
        self._found: Situation | None = None
        self._until = 0.0

    async def __call__(self) -> Situation:
        async with self._reading:
            if self._found is None or self._clock() >= self._until:
                self._found = None
                self._found = await self._read()
                self._until = self._clock() + _SHARED_SECONDS
            return self._found


async def present_situation(view: View, history: History) -> Situation:
    """The situation of the running fleet; it asks every worker for its counters. Raises ``NotFound`` if no fleet.yaml
    was applied."""
    # Nothing is asked for an answer that cannot be given.
    require_fleet(view)
    pools = {worker.pool for worker in view.workers.values()}
    reader = FleetReader()
    try:
        for _ in range(_READINGS):
            reading = await reader.read(view, pools)
            if not _lacks_configurations(reading):
                break
    finally:
        await reader.close()
    return situation_of(view, reading, history)


def _lacks_configurations(reading: FleetReading) -> bool:
    return any(
        version.batches and version.configuration is None
        for worker in reading.workers.values()
        if worker is not None
        for versions in worker.models.values()
        for version in versions.values()
    )
