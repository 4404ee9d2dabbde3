"""The changes of a simulated fleet, one after the other, drawn by a seed. They do not depend on where models are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from isochrone.control.placement.needs import ModelNeeds
from isochrone.control.placement.workers import DRAINING, SERVING, WorkerOffer
from isochrone.simulate.placement.fleets import SimulatedFleet, draw_model

LOST, HOT, COOLER, ADDED, RETIRED, VERSION, COMMITTED, RETURNED, SHRUNK, GROWN, DRAINED = (
    "worker lost",
    "model hot",
    "model cool",
    "model added",
    "model retired",
    "new version",
    "version committed",
    "worker added",
    "memory shrinks",
    "memory is back",
    "worker drains",
)
#: How often each change comes.
_WEIGHTS = {LOST: 5, HOT: 4, ADDED: 3, RETIRED: 2, VERSION: 4, SHRUNK: 2, DRAINED: 2}
#: Changes that end an earlier one, which comes so many steps before at least.
_PATIENCE = 3
#: Times the rate of a model that gets hot.
HEAT = 4.0
#: The memory that a worker has left when it shrinks, and that a new version needs, relative to before.
_SHRINKS_TO, _NEW_SIZE = 0.7, 1.2


@dataclass(frozen=True, slots=True)
class ChangedFleet:
    """The fleet after a change."""

    change: str
    #: The worker or model that changed.
    about: str
    fleet: SimulatedFleet


def draw_course(random: Random, fleet: SimulatedFleet, changes: int) -> Iterator[ChangedFleet]:
    """At most a tenth of the workers is away at a time."""
    course = _Course(random, fleet)
    for _ in range(changes):
        change, about = course.step()
        yield ChangedFleet(change, about, SimulatedFleet(tuple(course.needs.values()), tuple(course.workers.values())))


class _Course:
    def __init__(self, random: Random, fleet: SimulatedFleet) -> None:
        self._random = random
        self.needs = {each.name: each for each in fleet.needs}
        self.workers = {each.name: each for each in fleet.workers}
        self._most_away = max(1, len(fleet.workers) // 10)
        self._number = len(fleet.needs)
        #: What is to be ended: the change that does it, and what was before.
        self._open: list[tuple[int, str, WorkerOffer | ModelNeeds]] = []
        self._at = 0

    def step(self) -> tuple[str, str]:
        self._at += 1
        if self._open and (self._at - self._open[0][0] > _PATIENCE or self._away() >= self._most_away):
            return self._end(*self._open.pop(0)[1:])
        change = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        worker = self._random.choice([each for each in self.workers.values() if each.state == SERVING])
        # Stages of ensembles change with them: only single models are drawn.
        stages = {stage for each in self.needs.values() for stage in each.together}
        free = [each for each in self.needs.values() if not each.together and each.name not in stages]
        changing = {before.name for _, _, before in self._open}
        free = [each for each in free if each.name not in changing]
        model = self._random.choice(free)
        if change == HOT:
            # A model with some load already: four times nothing is nothing.
            model = max(self._random.sample(free, min(5, len(free))), key=lambda each: each.rate or 0.0)
        if worker.name in changing or (change == RETIRED and len(free) < 20):
            change = HOT
        return change, self._begin(change, worker, model)

    def _begin(self, change: str, worker: WorkerOffer, model: ModelNeeds) -> str:
        if change == LOST:
            self._open.append((self._at, RETURNED, worker))
            del self.workers[worker.name]
        elif change == DRAINED:
            self._open.append((self._at, RETURNED, worker))
            self.workers[worker.name] = replace(worker, state=DRAINING)
        elif change == SHRUNK:
            self._open.append((self._at, GROWN, worker))
            self.workers[worker.name] = replace(worker, memory=int(worker.memory * _SHRINKS_TO))
        elif change == HOT:
            self._open.append((self._at, COOLER, model))
            self.needs[model.name] = replace(model, rate=(model.rate or 0.0) * HEAT)
        elif change == VERSION:
            new = int(model.memory * _NEW_SIZE)
            self._open.append((self._at, COMMITTED, replace(model, memory=new)))
            self.needs[model.name] = replace(model, incoming=new)
        elif change == ADDED:
            model = draw_model(self._random, f"model-{self._number:04}")
            self._number += 1
            self.needs[model.name] = model
        else:
            del self.needs[model.name]
        return worker.name if change in (LOST, DRAINED, SHRUNK) else model.name

    def _end(self, change: str, after: WorkerOffer | ModelNeeds) -> tuple[str, str]:
        if isinstance(after, WorkerOffer):
            self.workers[after.name] = after
        else:
            self.needs[after.name] = after
        return change, after.name

    def _away(self) -> int:
        return sum(change == RETURNED for _, change, _ in self._open)
