"""Measures the models of planned pools, and how far workers are: takes readings of the fleet, and records the figures
that plans are made with.

All controllers read them from the store: their plans are the leader's, and the next leader begins with what is known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.placement.applying.planned_pools import planned_names
from isochrone.control.placement.figures import Figures, figures_record, measured_figures
from isochrone.control.scaling.measured.model_figures import ModelFigures, PlannedModels
from isochrone.control.scaling.measured.worker_distances import WorkerDistances
from isochrone.control.scaling.reading.fleet_counters import FleetReading
from isochrone.control.state.codec import encode
from isochrone.control.state.view import View
from isochrone.store.base import Delete, Put

#: Seconds between two readings, and between two writes of the record.
_PAUSE, _WRITE = 2.0, 5.0


class Measuring:
    """Of one fleet. ``changed`` is called when there is something to write."""

    def __init__(
        self, records: LeaderRecords, changed: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._keys = records.keys
        self._changed = changed
        self._clock = clock
        #: The fleet record's generation, and the planned pools of that fleet.
        self._pools: tuple[int, frozenset[str]] = (0, frozenset())
        #: None: there is no planned pool, or this controller does not lead.
        self._models: ModelFigures | None = None
        self._distances = WorkerDistances()
        #: What was measured and is not recorded yet.
        self._found: Figures | None = None
        self._written_at = float("-inf")

    @property
    def pools(self) -> Collection[str]:
        return self._pools[1] if self._models is not None else ()

    @property
    def pause(self) -> float:
        return _PAUSE

    def stop(self) -> None:
        self._models = self._found = None

    async def reconcile(self, view: View) -> None:
        """Write what was measured since the last call, if it differs from the record and that is old enough."""
        fleet = view.fleet
        if fleet is None:
            return
        if self._pools[0] != fleet.generation:
            self._pools = fleet.generation, planned_names(fleet_of(fleet.spec))
        if not self._pools[1]:
            self.stop()
            if self._keys.figures in view.entries:
                await self._write(view, Delete(self._keys.figures))
            return
        if self._models is None:
            self._models = ModelFigures(measured_figures(view.figures))
            self._distances = WorkerDistances()
        if self._found is None or self._clock() - self._written_at < _WRITE:
            return
        record, self._found = figures_record(self._found), None
        if record != view.figures:
            self._written_at = self._clock()
            await self._write(view, Put(self._keys.figures, encode(record)))

    async def take(self, reading: FleetReading) -> None:
        """Beside the leader's steps, which rollouts wait for."""
        view, measured = self._records.view(), self._models
        # Without the epoch nobody knows what a pool serves.
        if measured is None or view.epoch is None:
            return
        steps = measured.take_in_steps(reading, planned_models(view, self._pools[1]))
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: Figures = end.value
                break
            # The controller's other duties, such as its lease, wait for one step at most.
            await asyncio.sleep(0)
        if measured is self._models:
            self._found = replace(found, round_trips=self._distances.take(reading, self._clock()))
            self._changed()

    async def _write(self, view: View, operation: Put | Delete) -> None:
        compares = (view.unchanged(self._keys.fleet), view.unchanged(self._keys.figures))
        await self._records.write(compares, [operation], durable=False)


def planned_models(view: View, pools: Collection[str]) -> PlannedModels:
    """``pools``: those that are planned."""
    placements, assignments = view.placements, view.assignments
    replicas: dict[str, int] = {}
    for pool in pools:
        for model, names in placements[pool].replicas.items() if pool in placements else ():
            replicas[model] = replicas.get(model, 0) + len(names)
    ours = {model: each for model, each in assignments.items() if not set(pools).isdisjoint(each.pools)}
    return PlannedModels(
        {model: each.stages for model, each in ours.items()},
        {name: worker.device for name, worker in view.workers.items() if worker.pool in pools},
        {model: others for model, each in ours.items() if (others := len(set(each.pools) - set(pools)))},
        frozenset(model for model, number in replicas.items() if number <= 1),
    )
