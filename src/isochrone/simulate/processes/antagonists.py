"""Antagonists: other load on the workers' machines, and the cores that it leaves idle over time.

A worker always gets its allocation. Beyond it, the worker gets the cores that the antagonists leave idle. The demand on
each machine varies around its own level: some machines are always short of cores, others have many to spare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from isochrone.clock import SECOND
from isochrone.settings.ranges import Amount, PositiveAmount
from isochrone.settings.sections import Section
from isochrone.simulate.engine import Engine
from isochrone.simulate.processes.sharing_worker import SharingWorker


class Antagonists(Section):
    """The load beside every worker of the ``sharing`` model; each worker has its own machine."""

    #: Cores of a machine.
    machine_cores: PositiveAmount
    #: The machines' levels are spread evenly between these shares of a machine.
    level: Annotated[tuple[Amount, Amount], Field(strict=False)] = (0.6, 1.0)
    #: Standard deviation of the demand around the machine's level, as a share of the machine.
    swing: Amount = 0.1
    #: Mean time between two changes on one machine.
    change_seconds: PositiveAmount = 2.0

    def attach(self, engine: Engine, workers: Sequence[SharingWorker], random: np.random.Generator) -> None:
        """Start the antagonists of every worker's machine."""
        low, high = self.level
        levels = random.permutation(np.linspace(low, high, len(workers))).tolist()
        for worker, level in zip(workers, levels, strict=True):
            Neighbour(self, engine, worker, level, random).change(engine.now, None)


class Neighbour:
    """The antagonists of one machine."""

    __slots__ = ("_allocation", "_engine", "_level", "_random", "_rules", "_worker")

    def __init__(
        self, rules: Antagonists, engine: Engine, worker: SharingWorker, level: float, random: np.random.Generator
    ) -> None:
        self._rules = rules
        self._engine = engine
        self._worker = worker
        self._level = level
        self._random = random
        self._allocation = worker.cores

    def change(self, now: int, _: object) -> None:
        """Draw the demand until the next change."""
        rules = self._rules
        demand = self._level + self._random.normal(0.0, rules.swing) if rules.swing else self._level
        left = rules.machine_cores * (1 - max(0.0, demand))
        self._worker.set_cores(now, max(self._allocation, left))
        self._engine.at(now + int(self._random.exponential(rules.change_seconds) * SECOND) + 1, self.change)
