"""Sizes the autoscaled pools: observes them in readings of the fleet, lets the autoscaler decide, writes the sizes.

Supervisors start and drain workers by these records. What the autoscaler has learned of a pool is lost with the leader:
the next one holds the size that it finds until it has learned again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from isochrone.control.autoscaler.autoscaler import Autoscaler
from isochrone.control.autoscaler.decision import Decision
from isochrone.control.autoscaler.limit_reports import LimitReports
from isochrone.control.autoscaler.observation import Observation
from isochrone.control.autoscaler.settings import AutoscalerSettings
from isochrone.control.fleet.derived.pool_autoscaling import autoscaler_settings
from isochrone.control.fleet.derived.pool_sizes import awake_for, sized
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.reading.present_fleet import present_sizes
from isochrone.control.fleet.settings.pool_bounds import largest_size
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.leader.pool_members import absent, available, drained_by_users, members_of, size_for
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.rollout.observed_state import ObservedWorker
from isochrone.control.scaling.measured.pool_observation import PoolObserver
from isochrone.control.scaling.reading.fleet_counters import FleetReading
from isochrone.control.state.codec import encode
from isochrone.control.state.records import KUBERNETES, PoolSizeRecord
from isochrone.control.state.view import View
from isochrone.store.base import Compare, Delete, Put

_WHO = "autoscaler"
#: Readings in a start-up time: the autoscaler learns by readings, and was tuned at this rate. Seconds between two of
#: them, at least and at most.
_READINGS_PER_START_UP = 24
_LEAST_PAUSE, _USUAL_PAUSE = 1.0, 5.0
#: Seconds for which a record's figures stand although the latest decision has others.
_FIGURES_SECONDS = 10.0
#: Start-up times after which nobody counts on a worker that does not serve.
_START_UPS = 4


@dataclass(slots=True)
class _Pool:
    settings: AutoscalerSettings
    cost_per_worker: float
    #: Its workers that could be counted on when this leader, or these settings, took over.
    workers: int
    autoscaler: Autoscaler = field(init=False)
    observer: PoolObserver = field(init=False)
    limits: LimitReports = field(default_factory=LimitReports)
    #: By worker that should serve and does not: since when.
    absent: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.autoscaler = Autoscaler(self.settings, self.workers)
        self.observer = PoolObserver(self.settings.slo_seconds, self.cost_per_worker)

    def missed(self, names: Collection[str], now: float) -> set[str]:
        """Of the workers that do not serve: those that should have for several start-up times. Others replace them."""
        self.absent = {name: self.absent.get(name, now) for name in names}
        patience = _START_UPS * self.settings.start_up_seconds
        return {name for name, since in self.absent.items() if now - since > patience}


class Autoscaling:
    """Of one fleet. ``changed`` is called when there is something to decide. ``clock``: seconds since 1970."""

    def __init__(
        self, records: LeaderRecords, changed: Callable[[], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._records = records
        self._clock = clock
        self._keys = records.keys
        self._changed = changed
        #: By pool: what was observed and not decided on yet.
        self._observations: dict[str, Observation] = {}
        #: Workers that should serve and cannot be counted on.
        self._missed: set[str] = set()
        #: By worker: its last report.
        self._reports: Mapping[str, ObservedWorker] = {}
        self._pools: dict[str, _Pool] = {}
        #: The fleet record's generation, and the fleet that was read from it.
        self._fleet: tuple[int, Fleet] | None = None

    def stop(self) -> None:
        self._fleet = None
        self._observations.clear()
        self._pools.clear()

    async def reconcile(self, view: View, observed: Mapping[str, ObservedWorker]) -> None:
        """Decide on what was read since the last call, and write the sizes that change, each with its event."""
        record = view.fleet
        if record is None:
            return
        if self._fleet is None or self._fleet[0] != record.generation:
            self._fleet = record.generation, fleet_of(record.spec)
            self._follow(sized(self._fleet[1], present_sizes(view)), record.engine, drained_by_users(view))
        unchanged = view.unchanged(self._keys.fleet)
        await self._delete_others(view)
        if not self._pools:
            return
        self._reports = observed
        observations, self._observations = self._observations, {}
        rollouts = view.open_rollouts
        if not observations and not rollouts and not view.waiting_models:
            return
        present = sized(self._fleet[1], present_sizes(view))
        awake = awake_for(present, rollouts)
        for pool, state in self._pools.items():
            workers = present.pools[pool].workers
            observation = observations.get(pool)
            if not workers and (awake.pools[pool].workers or _is_waited_for(pool, view)):
                # The first request wakes the pool, or a rollout that needs it; how many more requests there are, the
                # next readings say.
                observation = Observation(time.monotonic(), offered=1.0, cost_per_worker=state.cost_per_worker)
            if observation is not None:
                decision = state.autoscaler.decide(observation)
                most = largest_size(present.pools[pool])
                size = size_for(pool, decision.desired, most, drained_by_users(view) | self._missed)
                await self._write(view, unchanged, pool, state, (workers, size), decision)

    def _follow(self, fleet: Fleet, engine: str, drained: Container[str]) -> None:
        """Keep what was learned of a pool as long as its settings are the same. ``fleet``: at its present size."""
        found: dict[str, _Pool] = {}
        # Pods are scaled by their cluster.
        for pool, spec in fleet.pools.items() if engine != KUBERNETES else ():
            settings = autoscaler_settings(fleet, pool)
            if settings is None or spec.autoscale is None:
                continue
            known, cost = self._pools.get(pool), spec.autoscale.cost_per_worker
            is_same = known is not None and (known.settings, known.cost_per_worker) == (settings, cost)
            if known is None or not is_same:
                known = _Pool(settings, cost, available(pool, spec.workers, drained))
            found[pool] = known
        self._pools = found

    async def _delete_others(self, view: View) -> None:
        """Delete the sizes of pools that are not autoscaled any more."""
        others = [pool for pool in view.pool_sizes if pool not in self._pools]
        if others:
            operations = [Delete(self._keys.pool_size(pool)) for pool in others]
            await self._records.write((view.unchanged(self._keys.fleet),), operations, durable=False)

    # Readings.

    @property
    def pools(self) -> Collection[str]:
        return tuple(self._pools)

    @property
    def pause(self) -> float:
        start_up = min((each.settings.start_up_seconds for each in self._pools.values()), default=0.0)
        return min(max(start_up / _READINGS_PER_START_UP, _LEAST_PAUSE), _USUAL_PAUSE)

    async def take(self, reading: FleetReading) -> None:
        """What a reading says of each pool. Beside the leader's steps, which rollouts wait for."""
        view = self._records.view()
        # Without the epoch nobody knows what a pool serves: its load is not zero.
        if self._fleet is None or view.epoch is None:
            return
        present, now, drained = sized(self._fleet[1], present_sizes(view)), time.monotonic(), view.drains
        unavailable = drained_by_users(view) | self._missed
        found = members_of(self._pools, present, view, self._reports, unavailable)
        self._missed = {
            name
            for pool, members in found.items()
            for name in self._pools[pool].missed(absent(pool, present, members, drained), now)
        }
        for pool, members in found.items():
            state = self._pools.get(pool)
            if state is None:
                continue  # another fleet was applied meanwhile
            steps = state.observer.observe_in_steps(reading, members, time.monotonic(), _time_of_day())
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    # Decided on now: a request may have woken the pool since the first step.
                    self._observations[pool] = replace(end.value, instant=time.monotonic())
                    break
                # The controller's other duties, such as its lease, wait for one step at most.
                await asyncio.sleep(0)
        self._changed()

    async def _write(
        self, view: View, unchanged: Compare, pool: str, state: _Pool, sizes: tuple[int, int], decision: Decision
    ) -> None:
        """``sizes``: before, and from now on."""
        before, size = sizes
        key, detail = self._keys.pool_size(pool), decision.explanation
        is_news = state.limits.is_news(decision, time.monotonic()) or size != before
        record = PoolSizeRecord(size, decision.reason, detail, self._clock())
        # The first decision is recorded in any case: a supervisor may still know another size.
        if not is_news and key in view.entries and not _is_outdated(view.read(key, PoolSizeRecord), record):
            return
        operations: list[Put | Delete] = [Put(key, encode(record))]
        if is_news:
            change = f"from {before} to {size}" if size != before else f"stays at {size}"
            operations.append(self._records.event(_WHO, "pool sized", pool, f"{change}: {decision.reason}; {detail}"))
        await self._records.write((unchanged, view.unchanged(key)), operations, durable=False)


def _is_outdated(recorded: PoolSizeRecord | None, latest: PoolSizeRecord) -> bool:
    """Whether the status would show a reason, or for long figures, that do not hold any more."""
    if recorded is None:
        return False
    if recorded.reason != latest.reason:
        return True
    # The clock may have been set back since.
    is_recent = 0 <= latest.at - recorded.at <= _FIGURES_SECONDS
    return recorded.detail != latest.detail and not is_recent


def _is_waited_for(pool: str, view: View) -> bool:
    waiting, committed = view.waiting_models, view.assignments
    return any(pool in each.pools for model, each in committed.items() if model in waiting)


def _time_of_day() -> float:
    """Seconds since local midnight."""
    now = datetime.now()
    return now.hour * 3600 + now.minute * 60 + now.second + now.microsecond / 1e6
