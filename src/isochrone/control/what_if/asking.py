"""Asks a question about the running fleet: reads its workers, and gives the situation to whoever simulates it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isochrone.control.figures.history import History
from isochrone.control.scaling.reading.fleet_counters import FleetReading
from isochrone.control.scaling.reading.fleet_reading import FleetReader
from isochrone.control.state.view import View
from isochrone.control.what_if.answers import WhatIfAnswer
from isochrone.control.what_if.reading import situation_of
from isochrone.control.what_if.situation import Situation

#: Readings of the fleet for one situation: each asks a worker for some tens of configurations that are not known yet.
_READINGS = 4


class Simulator(Protocol):
    """Answers questions without holding the loop up."""

    async def answer(
        self, situation: Situation, questions: Sequence[str], seed: int = 1, seconds: float | None = None
    ) -> WhatIfAnswer:
        """Raises ``InvalidArgument`` for questions that the situation cannot have, and ``QueueFull`` if there are too
        many at once."""
        ...


async def present_situation(view: View, history: History) -> Situation:
    """The situation of the running fleet; it asks every worker for its counters."""
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
