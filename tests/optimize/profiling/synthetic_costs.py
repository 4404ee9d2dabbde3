"""Costs of models that exist as formulas only: fixed cost, cost per row, serial share, contention, caches, noise."""

from __future__ import annotations

import random
from dataclasses import dataclass

from isochrone.optimize.profiling.search.objective import best
from isochrone.optimize.profiling.search.search import Point, Search
from isochrone.optimize.profiling.search.space import Configuration, Space


@dataclass(frozen=True)
class Cost:
    """Times in nanoseconds on a machine with ``cores``."""

    cores: int
    fixed: float
    row: float
    #: The share of a run that threads do not shorten.
    serial: float
    #: How much longer a run takes while all cores are busy.
    contention: float
    #: From so many rows on, a row costs half as much again: they do not fit into a cache.
    cached_rows: int = 1 << 30
    #: Whether runs exclude each other, as those of Python code do.
    exclusive: bool = False

    def run_ns(self, given: Configuration) -> float:
        beyond = max(0, given.batch - self.cached_rows)
        alone = self.fixed + self.row * (given.batch + beyond / 2)
        if self.exclusive:
            return alone * given.instances
        busy = min(given.cores, self.cores)
        contended = 1 + self.contention * (busy - 1) / max(1, self.cores - 1)
        threads = min(given.threads, self.cores)
        return alone * (self.serial + (1 - self.serial) / threads) * contended * max(1.0, given.cores / self.cores)

    def point(self, given: Configuration, noise: random.Random | None = None) -> Point:
        run = self.run_ns(given) * (1 if noise is None else noise.uniform(0.99, 1.01))
        return Point(given, run, run * 1.1, given.batch * given.instances / run * 1e9)


def searched(search: Search, cost: Cost, noise: random.Random) -> tuple[Point, int]:
    """The found configuration without noise, and the number of measurements."""
    taken = 0
    while (configuration := search.propose()) is not None:
        search.add(cost.point(configuration, noise))
        taken += 1
    found = search.found()
    assert found is not None
    return cost.point(found.configuration), taken


def swept(space: Space, cost: Cost, slo_ns: float | None) -> Point:
    """The best configuration of a full sweep, without noise."""
    points = {configuration: cost.point(configuration) for configuration in space.sweep()}
    return points[best((point.value for point in points.values()), slo_ns).configuration]
