"""Keeps the placement records of planned pools: makes plans and begins their moves as memory and readiness allow.

``planning.planner`` plans, ``applying.execution`` says which moves may begin; this module reads the records and the
workers' reports and writes the result, each move with its event (``applying.events``). The plan itself is not stored: a
new leader makes another one from the same records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.placement.applying.absences import Absences
from isochrone.control.placement.applying.events import of_hanging_loads, of_lost_replicas, of_missing_replicas, of_move
from isochrone.control.placement.applying.execution import Holding, lost_replicas, next_replicas
from isochrone.control.placement.applying.late_loads import LateLoads, Process
from isochrone.control.placement.applying.planned_pools import (
    PlannedPools,
    excess_workers,
    expected_workers,
    observed_replicas,
    planned_names,
    planned_pools,
    recorded_replicas,
    records_of,
)
from isochrone.control.placement.applying.rejections import Rejections
from isochrone.control.placement.figures import UNMEASURED, Figures, measured_figures
from isochrone.control.placement.plan import FAILED, Move, Plan
from isochrone.control.placement.planning.planner import plan_placement
from isochrone.control.placement.workers import Replicas
from isochrone.control.rollout.observed_state import ObservedWorker
from isochrone.control.state.assignment import Placements
from isochrone.control.state.codec import encode
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import LOCAL, EventRecord, FiguresRecord, PlacementRecord
from isochrone.control.state.view import View
from isochrone.store.base import Delete, Put
from isochrone.store.operations import MAX_OPERATIONS

log = structlog.get_logger(__name__)

#: Seconds between two plans for other figures alone, and while moves of the last plan are left, which may take minutes.
_EVERY, _EVERY_WHILE_MOVING = 5.0, 15.0
#: Seconds after which a plan without progress is made again.
_STUCK = 60.0
#: Seconds until every gateway knows a new replica: gateways read a worker's index every second, and less often after it
#: was unreachable. An earlier unload of the old replica would leave a gateway without any.
KNOWN_SECONDS = 3.0
#: Seconds after a worker's answer in which what it serves justifies an unload elsewhere. It is read every second.
_CURRENT = 1.0
#: Seconds for the workers of a pool that becomes planned to report what they have.
_REPORT_SECONDS = 10.0


class ModelPlacement:
    """Of one fleet."""

    def __init__(self, records: LeaderRecords, clock: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._keys = records.keys
        self._clock = clock
        #: What is measured of models and workers, and the record that it was read from.
        self._figures: tuple[FiguresRecord | None, Figures] = (None, UNMEASURED)
        #: The fleet record's generation, and the fleet that was read from it.
        self._fleet: tuple[int, Fleet | None] = (0, None)
        self._absences = Absences()
        self._rejections = Rejections()
        self._loads = LateLoads()
        #: By worker: models whose load hangs, as the events say.
        self._late: Mapping[str, frozenset[str]] = {}
        #: By pool without a record: since when its workers have been waited for.
        self._awaited: dict[str, float] = {}
        #: By worker's name and incarnation, by model: since when it has been ready.
        self._ready_since: dict[tuple[str, str, str], float] = {}
        #: Workers, with their incarnations, whose reports the records take into account.
        self._accounted: frozenset[tuple[str, str]] = frozenset()
        self._plan = Plan({})
        #: Its moves that began; the fewest that were left to do, and since when.
        self._begun: frozenset[Move] = frozenset()
        self._left: tuple[float, float] = (math.inf, 0.0)
        #: What the plan was made for; when.
        self._plan_key: object = None
        self._planned_at = 0.0
        self._planned_for = UNMEASURED

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
        awaited, names = names - placements.keys(), names & placements.keys()
        if not names:
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
        figures = self._read_figures(view)
        known, late = self._late, self._late_loads(fleet, view, observed, present, now)
        pools = planned_pools(fleet, view, observed, placements, starting, homes, figures, rejected, excess, late)
        self._plan_again(pools, figures, now)
        holdings = self._with_known(pools.holdings, observed, now)
        step = next_replicas(present, self._plan.moves, holdings, pools.needed, pools.stages, self._begun)
        self._left = min(self._left, (step.left, now))
        self._give_up(step.begun, view, now)
        if step.is_done and self._plan.moves:
            # Another plan follows: what the moves freed may serve what could not be placed.
            self._plan_key = None
        after = records_of(pools, step.replicas, step.reserved, self._plan, homes, placements, gone)
        events = [
            *of_lost_replicas(lost),
            *of_hanging_loads(fleet, known, late),
            *map(of_move, step.begun),
            *of_missing_replicas(placements, after),
        ]
        if await self._write(view, after, events):
            self._late = late
            self._begun |= frozenset(step.begun)
            self._accounted = frozenset(
                (name, observed[name].record.incarnation) for name in holdings.keys() - step.undecided
            )
        return not step.is_done or bool(awaited)

    def _give_up(self, moves: Iterable[Move], view: View, now: float) -> None:
        versions = {model: each.version for model, each in view.assignments.items()}
        workers = view.workers
        self._rejections.keep_only(
            {(name, each.incarnation, *item) for name, each in workers.items() for item in versions.items()}
        )
        for move in moves:
            if move.reason == FAILED and move.worker in workers and move.model in versions:
                attempt = (move.worker, workers[move.worker].incarnation, move.model, versions[move.model])
                self._rejections.give_up(attempt, now)

    def _late_loads(
        self, fleet: Fleet, view: View, observed: Mapping[str, ObservedWorker], present: Replicas, now: float
    ) -> dict[str, frozenset[str]]:
        """By worker: the models whose load hangs. Rollouts have limits of their own."""
        changing = {model for rollout in view.open_rollouts for model in rollout.changes}
        models = {model: each.version for model, each in view.assignments.items() if model not in changing}
        waiting: dict[Process, set[str]] = {}
        ready: dict[Process, frozenset[str]] = {}
        for name, worker in observed.items():
            if worker.models is None or worker.read_at == -math.inf:
                continue
            process = (name, worker.record.incarnation)
            ready[process] = frozenset(model for model in models if models[model] in worker.ready(model))
            there = {model for model in models if name in present.get(model, ())}
            waiting[process] = there - ready[process] - worker.failures.keys()
        limits = {model: fleet.of(model).rollout.prepare_seconds for model in models}
        return self._loads.late(waiting, ready, limits, now)

    def _with_known(
        self, holdings: Mapping[str, Holding], observed: Mapping[str, ObservedWorker], now: float
    ) -> dict[str, Holding]:
        """With the models that gateways know: the worker answered all reads, the last one after that time."""
        since: dict[tuple[str, str, str], float] = {}
        found = {}
        for name, holding in holdings.items():
            known, worker = set(), observed[name]
            for model in holding.ready if worker.read_at > -math.inf else ():
                key = (name, worker.record.incarnation, model)
                since[key] = self._ready_since.get(key, now)
                if min(now, worker.read_at) - since[key] >= KNOWN_SECONDS:
                    known.add(model)
            found[name] = replace(holding, known=frozenset(known), answers=now - worker.read_at <= _CURRENT)
        self._ready_since = since
        return found

    # What the plan is made of.

    def _read_fleet(self, view: View) -> Fleet | None:
        record = view.fleet
        if record is not None and self._fleet[0] != record.generation:
            self._fleet = record.generation, fleet_of(record.spec)
        return self._fleet[1]

    def _read_figures(self, view: View) -> Figures:
        record = view.figures
        if record is not self._figures[0]:
            self._figures = record, measured_figures(record)
        return self._figures[1]

    def _decided(
        self, view: View, observed: Mapping[str, ObservedWorker], names: Iterable[str], now: float
    ) -> dict[str, PlacementRecord]:
        """The records of planned pools; of one without, what its workers have, once they have reported."""
        found = {pool: record for pool, record in view.placements.items() if pool in names}
        for pool in sorted(set(names) - found.keys()):
            began = self._awaited.setdefault(pool, now)
            silent = [
                name
                for name, record in view.workers.items()
                if record.pool == pool and (name not in observed or observed[name].models is None)
            ]
            if silent and now - began < _REPORT_SECONDS:
                continue
            found[pool] = PlacementRecord(observed_replicas(view, observed, pool))
        self._awaited = {pool: began for pool, began in self._awaited.items() if pool not in view.placements}
        return found

    def _plan_again(self, pools: PlannedPools, figures: Figures, now: float) -> None:
        """A new plan if workers, models or failures differ; if measured figures do, after a pause."""
        inputs = pools.inputs
        # Without what measuring changes; what the file states of that comes with its generation.
        needs = tuple(replace(each, rate=None, curves={}, instances=1, budget=math.inf) for each in inputs.needs)
        key = (self._fleet[0], needs, tuple(replace(each, round_trip=0.0) for each in inputs.workers))
        pause = _EVERY_WHILE_MOVING if self._plan.moves else _EVERY
        figures_differ = figures != self._planned_for and now - self._planned_at >= pause
        is_stuck = bool(self._plan.moves) and now - max(self._left[1], self._planned_at) >= _STUCK
        if key == self._plan_key and not is_stuck and not figures_differ:
            return
        self._plan = plan_placement(inputs.needs, inputs.workers, inputs.replicas)
        self._plan_key, self._planned_at, self._planned_for = key, now, figures
        self._begun, self._left = frozenset(), (math.inf, now)
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
        if not changed and not events:
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
