"""Keeps the placement records of planned pools: makes plans and begins their moves as memory and readiness allow.

``placement.planner`` plans, ``placement.execution`` says which moves may begin; this module reads the records and the
workers' reports and writes the result, each move with its event. The plan itself is not stored: a new leader makes
another one from the same records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.placement import plan as words
from isochrone.control.placement.absences import Absences
from isochrone.control.placement.execution import Holding, lost_replicas, next_replicas
from isochrone.control.placement.fleet_inputs import StatedFigures
from isochrone.control.placement.plan import ADD, Move, Plan
from isochrone.control.placement.planned_pools import (
    PlannedPools,
    excess_workers,
    expected_workers,
    observed_replicas,
    planned_names,
    planned_pools,
    recorded_replicas,
    records_of,
)
from isochrone.control.placement.planner import plan_placement
from isochrone.control.placement.rejections import Rejections
from isochrone.control.placement.workers import Replicas
from isochrone.control.rollout.observed_state import ObservedWorker
from isochrone.control.state.assignment import Placements
from isochrone.control.state.records import LOCAL, EventRecord, PlacementRecord, WorkerRecord, encode
from isochrone.control.state.view import View
from isochrone.store.base import Delete, Put
from isochrone.store.operations import MAX_OPERATIONS

log = structlog.get_logger(__name__)

_WHO = "placement"
#: Seconds between two plans for other rates alone; seconds after which a plan that does not get on is made again.
_EVERY, _STUCK = 5.0, 60.0
#: Seconds until every gateway knows a new replica: gateways read a worker's index every second, and less often after it
#: was unreachable. An earlier unload of the old replica would leave a gateway without any.
KNOWN_SECONDS = 3.0
#: Seconds for the workers of a pool that becomes planned to report what they have.
_REPORT_SECONDS = 10.0

_REASONS = {
    words.RETIRED: "the model is no longer served",
    words.RESTORE: "the model has too few replicas",
    words.RULE: "the replica breaks a rule where it is",
    words.ROOM: "it makes room for another model",
    words.MEMORY: "the worker has too little memory",
    words.COLD: "the load does not need it",
    words.HOT: "the replicas of the model are busy",
    words.OVERLOAD: "the worker is busy",
    words.BALANCE: "it balances the load",
    words.FAILED: "the worker could not load it",
    words.ADOPTED: "it serves the model there, and no other worker does",
}


class ModelPlacement:
    """Of one fleet. ``figures``: rates and run times of models, as far as they are measured."""

    def __init__(
        self,
        records: LeaderRecords,
        figures: Callable[[], StatedFigures] = StatedFigures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._keys = records.keys
        self._figures = figures
        self._clock = clock
        #: The fleet record's generation, and the fleet that was read from it.
        self._fleet: tuple[int, Fleet | None] = (0, None)
        self._absences = Absences()
        self._rejections = Rejections()
        #: By pool without a record: since when its workers have been waited for.
        self._awaited: dict[str, float] = {}
        #: By worker's name and incarnation, by model: since when it has been ready.
        self._ready_since: dict[tuple[str, str, str], float] = {}
        #: Workers, with their incarnations, whose reports the records take into account.
        self._accounted: frozenset[tuple[str, str]] = frozenset()
        self._plan = Plan({})
        #: What the plan was made for; when; when a move of it last began.
        self._plan_key: object = None
        self._planned_at = self._moved_at = 0.0
        self._planned_for = StatedFigures()

    def placements(self, view: View) -> Placements:
        """By planned pool; one that has no record yet has no replicas."""
        fleet = self._read_fleet(view)
        undecided = planned_names(fleet) if fleet is not None else ()
        return {**{pool: PlacementRecord() for pool in undecided}, **view.placements}

    def is_undecided(self, view: View, worker: WorkerRecord) -> bool:
        """Whether it is not known yet what a worker should have: nothing is loaded or unloaded there. In a planned
        pool, what it has must be known first: it may have the only replica of a model."""
        fleet = self._read_fleet(view)
        if fleet is None or worker.pool not in planned_names(fleet):
            return False
        return worker.pool not in view.placements or (worker.name, worker.incarnation) not in self._accounted

    async def reconcile(self, view: View, observed: Mapping[str, ObservedWorker]) -> bool:
        """Write the next replicas; return whether moves are in progress."""
        fleet = self._read_fleet(view)
        if fleet is None:
            return False
        names = planned_names(fleet)
        if view.is_unreadable(self._keys.epoch):
            return False
        await self._delete_others(view, fleet, names)
        if not names:
            return False
        now = self._clock()
        if not _registered(view, names):
            self._absences.forget()
            return False
        placements = self._decided(view, observed, names, now)
        if placements is None:
            return True
        recorded = recorded_replicas(placements, names)
        homes = {**expected_workers(fleet, names), **_homes(placements), **_registered(view, names)}
        excess = excess_workers(fleet, homes, view.fleet.engine if view.fleet is not None else LOCAL)
        # One that the file does not ask for does not come back.
        starting = self._absences.starting(homes, view.workers.keys(), fleet.store.lease_seconds, now) - excess
        gone = homes.keys() - view.workers.keys() - starting
        lost = lost_replicas(recorded, gone)
        present = {model: workers - lost.get(model, frozenset()) for model, workers in recorded.items()}
        rejected = self._rejections.rejected(now)
        pools = planned_pools(fleet, view, observed, placements, starting, homes, self._figures(), rejected, excess)
        self._plan_again(pools, now)
        holdings = self._with_known(pools.holdings, view, now)
        step = next_replicas(present, self._plan.moves, holdings, pools.needed, pools.stages)
        if step.begun:
            self._moved_at = now
        self._give_up(step.begun, view, now)
        if step.is_done and self._plan.moves:
            # Another plan follows: what the moves freed may serve what could not be placed.
            self._plan_key = None
        after = records_of(pools, step.replicas, step.reserved, self._plan.unplaced, homes, placements, gone)
        events = [*_losses(lost), *map(_event, step.begun), *_unplaced(placements, after)]
        if await self._write(view, after, events):
            self._accounted = frozenset(
                (name, observed[name].record.incarnation) for name in holdings.keys() - step.undecided
            )
        return not step.is_done

    def _give_up(self, moves: Iterable[Move], view: View, now: float) -> None:
        versions = {model: each.version for model, each in view.assignments.items()}
        workers = view.workers
        self._rejections.keep_only(
            {(name, each.incarnation, *item) for name, each in workers.items() for item in versions.items()}
        )
        for move in moves:
            if move.reason == words.FAILED and move.worker in workers and move.model in versions:
                attempt = (move.worker, workers[move.worker].incarnation, move.model, versions[move.model])
                self._rejections.give_up(attempt, now)

    def _with_known(self, holdings: Mapping[str, Holding], view: View, now: float) -> dict[str, Holding]:
        workers = view.workers
        since: dict[tuple[str, str, str], float] = {}
        found = {}
        for name, holding in holdings.items():
            known = set()
            for model in holding.ready:
                key = (name, workers[name].incarnation if name in workers else "", model)
                since[key] = self._ready_since.get(key, now)
                if now - since[key] >= KNOWN_SECONDS:
                    known.add(model)
            found[name] = replace(holding, known=frozenset(known))
        self._ready_since = since
        return found

    # What the plan is made of.

    def _read_fleet(self, view: View) -> Fleet | None:
        record = view.fleet
        if record is not None and self._fleet[0] != record.generation:
            self._fleet = record.generation, fleet_of(record.spec)
        return self._fleet[1]

    def _decided(
        self, view: View, observed: Mapping[str, ObservedWorker], names: Iterable[str], now: float
    ) -> dict[str, PlacementRecord] | None:
        """The records of all planned pools; of one without, what its workers have. None: they have not reported yet."""
        found = {pool: record for pool, record in view.placements.items() if pool in names}
        for pool in sorted(set(names) - found.keys()):
            began = self._awaited.setdefault(pool, now)
            silent = [
                name
                for name, record in view.workers.items()
                if record.pool == pool and (name not in observed or observed[name].models is None)
            ]
            if silent and now - began < _REPORT_SECONDS:
                return None
            found[pool] = PlacementRecord(observed_replicas(view, observed, pool))
        self._awaited = {pool: began for pool, began in self._awaited.items() if pool not in view.placements}
        return found

    def _plan_again(self, pools: PlannedPools, now: float) -> None:
        """A new plan if workers, models or failures differ; if rates do, once the last plan is done."""
        inputs, figures = pools.inputs, self._figures()
        key = (tuple(replace(each, rate=None, curves={}) for each in inputs.needs), inputs.workers)
        rates_differ = figures != self._planned_for and now - self._planned_at >= _EVERY
        is_stuck = bool(self._plan.moves) and now - max(self._moved_at, self._planned_at) >= _STUCK
        if key == self._plan_key and not is_stuck and not (rates_differ and not self._plan.moves):
            return
        self._plan = plan_placement(inputs.needs, inputs.workers, inputs.replicas)
        self._plan_key, self._planned_at, self._planned_for = key, now, figures
        if self._plan.moves:
            log.info("models are placed", moves=len(self._plan.moves), unplaced=sorted(self._plan.unplaced))

    # Writing.

    async def _delete_others(self, view: View, fleet: Fleet, planned: Iterable[str]) -> None:
        """Records of pools that are not planned any more; of pools that the file dropped, once nothing serves there:
        without its record, a worker of such a pool would load all models of the pool."""
        prefix = self._keys.placements
        pools = {key.removeprefix(prefix) for key in view.entries if key.startswith(prefix)} - frozenset(planned)
        if not pools:
            return
        serving = _serving(view)
        gone = [pool for pool in sorted(pools) if pool in fleet.pools or pool not in serving]
        if gone:
            await self._records.write(
                (view.unchanged(self._keys.fleet),), [Delete(self._keys.placement(pool)) for pool in gone]
            )

    async def _write(
        self,
        view: View,
        after: Placements,
        events: Sequence[EventRecord],
    ) -> bool:
        """Return whether the records are as they should be."""
        changed = {pool: record for pool, record in after.items() if record != view.placements.get(pool)}
        if not changed:
            return True
        operations: list[Put | Delete] = [
            Put(self._keys.placement(pool), encode(each)) for pool, each in changed.items()
        ]
        # As many events as there is room for: an event is worth less than the change that it reports.
        room = MAX_OPERATIONS - len(operations)
        compares = [view.unchanged(self._keys.fleet), *(view.unchanged(self._keys.placement(pool)) for pool in changed)]
        written = await self._records.write(
            compares, [*operations, *(self._records.event_of(each) for each in events[:room])]
        )
        for at in range(room, len(events) if written else 0, MAX_OPERATIONS):
            await self._records.write_transient(
                (), [self._records.event_of(each) for each in events[at : at + MAX_OPERATIONS]]
            )
        return written


def _serving(view: View) -> set[str]:
    """Pools with workers, with committed models or in open rollouts, and those that run until their models have
    moved."""
    changes = [change for each in view.open_rollouts for change in each.changes.values()]
    return {
        *(each.pool for each in view.workers.values()),
        *(pool for each in view.assignments.values() for pool in each.pools),
        *(pool for change in changes for pool in (*change.pools, *change.left)),
        *(view.fleet.kept if view.fleet is not None else ()),
    }


def _homes(placements: Placements) -> dict[str, str]:
    """By worker with replicas: its pool."""
    return {name: pool for pool, each in placements.items() for names in each.replicas.values() for name in names}


def _registered(view: View, pools: Iterable[str]) -> dict[str, str]:
    return {name: record.pool for name, record in view.workers.items() if record.pool in pools}


def _event(move: Move) -> EventRecord:
    what = "replica loads" if move.action == ADD else "replica unloads"
    what = "replica stays" if move.reason == words.ADOPTED else what
    detail = f"worker {move.worker}: {_REASONS.get(move.reason, move.reason)}"
    return EventRecord(time.time(), _WHO, what, move.model, detail)


def _losses(lost: Replicas) -> Iterable[EventRecord]:
    by_worker: dict[str, list[str]] = {}
    for model, names in sorted(lost.items()):
        for name in names:
            by_worker.setdefault(name, []).append(model)
    for name, models in sorted(by_worker.items()):
        yield EventRecord(time.time(), _WHO, "replicas lost", name, f"its models are placed again: {', '.join(models)}")


def _unplaced(before: Placements, after: Placements) -> Iterable[EventRecord]:
    """Models that no worker can take, once."""
    known = {model for each in before.values() for model in each.unplaced}
    found = {model: why for each in after.values() for model, why in each.unplaced.items() if model not in known}
    for model, why in sorted(found.items()):
        yield EventRecord(time.time(), _WHO, "model is not placed", model, why)
