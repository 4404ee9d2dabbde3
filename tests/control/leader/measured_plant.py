"""A planned pool under load, without processes: callers at random, workers that count, and the leader that measures."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping

from planned_plant import TEXT, Plant

from fleet_records import KEYS, file_of
from isochrone.control.leader.measuring import Measuring
from isochrone.control.scaling.reading.fleet_counters import (
    BatchCounts,
    FleetReading,
    GatewayCounts,
    ModelConfiguration,
    RequestCounts,
    VersionStatistics,
    WorkerStatistics,
)
from isochrone.control.state.records import Assignment, FleetRecord

#: Seconds between two steps of the leader, and between two readings.
STEP, READING = 1.0, 2.0
CONFIGURATION = ModelConfiguration()


class MeasuredPlant(Plant):
    """``seconds``: by model, of one run, which has one row. Requests are shared equally by the ready replicas, however
    many there are: nothing is rejected, and nothing queues."""

    def __init__(
        self,
        seconds: Mapping[str, float],
        seed: int = 1,
        text: str = TEXT,
        versions: Mapping[str, Assignment] | None = None,
    ) -> None:
        super().__init__(text, versions)
        self.seconds = seconds
        self.random = random.Random(seed)
        self.received = dict.fromkeys(seconds, 0)
        #: By worker, by model: requests and their time in ns.
        self.answered: dict[str, dict[str, tuple[int, int]]] = {}
        self.configurations = dict.fromkeys(seconds, CONFIGURATION)
        #: By worker: seconds, as the gateway measures them.
        self.round_trips: dict[str, float] = {}
        self.measuring = Measuring(self.leader, lambda: None, lambda: self.now)
        self._read_at = -READING

    def lead_anew(self) -> None:
        super().lead_anew()
        self.measuring = Measuring(self.leader, lambda: None, lambda: self.now)

    def apply(self, text: str) -> None:
        """Another file."""
        before = self.records.view.fleet
        assert before is not None
        spec = file_of(text).fleet.model_dump(mode="json")
        self.records.put(KEYS.fleet, FleetRecord(before.generation + 1, text, spec))

    def run(self, seconds: float, rates: Mapping[str, float]) -> None:
        """Callers at these rates, for some time."""
        ends = self.now + seconds
        while self.now < ends:
            for model, rate in rates.items():
                self._call(model, poisson(self.random, rate * STEP))
            asyncio.run(self._lead())
            self.step(STEP)
            self.load()

    async def _lead(self) -> None:
        if self.now - self._read_at >= READING:
            self._read_at = self.now
            await self.measuring.take(self.reading())
        await self.measuring.reconcile(self.records.view)

    def _call(self, model: str, requests: int) -> None:
        self.received[model] += requests
        ready = [name for name, worker in self.workers.items() if worker.ready(model)]
        for _ in range(requests if ready else 0):
            counts = self.answered.setdefault(self.random.choice(ready), {})
            number, taken = counts.get(model, (0, 0))
            counts[model] = number + 1, taken + round(self.seconds[model] * self.random.uniform(0.8, 1.2) * 1e9)

    def reading(self) -> FleetReading:
        counts = {model: RequestCounts(count) for model, count in self.received.items()}
        gateway = GatewayCounts("1", counts, round_trips=self.round_trips)
        return FleetReading(self.now, {"gw-1": gateway}, {name: self._statistics(name) for name in self.workers})

    def _statistics(self, name: str) -> WorkerStatistics:
        models = {}
        for model in self.workers[name].models or ():
            number, taken = self.answered.get(name, {}).get(model, (0, 0))
            batches = {1: BatchCounts(number, taken)} if number else {}
            configuration = self.configurations[model] if number else None
            models[model] = {"1": VersionStatistics(batches, 0, number, number, configuration)}
        return WorkerStatistics("1", models)

    @property
    def moves(self) -> list[str]:
        return [f"{what}: {model}, {why}" for what, model, why in self.events if what in MOVES]


MOVES = ("replica loads", "replica unloads")


def poisson(source: random.Random, mean: float) -> int:
    """As many events as come in a time in which ``mean`` are expected."""
    count, left = 0, mean
    while left > 0:
        # In parts: exp(-mean) of a large mean is 0.
        part, product = math.exp(-min(left, 50.0)), source.random()
        while product > part:
            count += 1
            product *= source.random()
        left -= 50.0
    return count


def loaded(seconds: Mapping[str, float], seed: int = 1) -> MeasuredPlant:
    plant = MeasuredPlant(seconds, seed)
    plant.join("cpu-1", "cpu-2", "cpu-3")
    plant.settle()
    return plant
