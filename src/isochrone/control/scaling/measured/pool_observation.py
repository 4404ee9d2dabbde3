"""What the autoscaler observes of one pool, from readings of the fleet's counters. Pure."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from math import exp, fsum
from statistics import median

from isochrone.control.autoscaler.observation import Observation
from isochrone.control.scaling.measured.answered_load import NOTHING, Answered, AnsweredLoad
from isochrone.control.scaling.measured.model_shares import ModelShares
from isochrone.control.scaling.measured.offered_load import OfferedLoad, Rates
from isochrone.control.scaling.measured.worker_capacity import WorkerCapacity
from isochrone.control.scaling.reading.fleet_counters import FleetReading

#: The mix of models is a mean of the last readings, whose weight falls to 1/e in this time.
_MIX_SECONDS = 30.0
_NANOSECOND = 1e-9


@dataclass(frozen=True, slots=True)
class Shared:
    """A model that is in several pools, as one of them sees it."""

    #: Names of the workers of the other pools.
    others: tuple[str, ...] = ()
    #: Pools of the model, with this one.
    pools: int = 2


@dataclass(frozen=True, slots=True)
class PoolMembers:
    """The models and the workers of a pool."""

    #: Committed models of the pool.
    models: frozenset[str]
    #: Names of the workers that serve.
    ready: tuple[str, ...] = ()
    #: Workers that start.
    pending: int = 0
    standby: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()
    #: By model: those that are in other pools, too.
    shared: Mapping[str, Shared] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether no worker serves or will."""
        return not self.ready and not self.pending

    @property
    def own(self) -> tuple[str, ...]:
        """The workers of the pool that have started."""
        return (*self.ready, *self.standby, *self.draining)


@dataclass(frozen=True, slots=True)
class _Load:
    """Of the pool."""

    #: Requests per second; None: not known.
    offered: float | None = None
    refused: float = 0.0
    #: By model: its part of the known load.
    by_model: Mapping[str, float] = field(default_factory=dict)
    #: Requests in the waiting rooms.
    waiting: float = 0.0
    oldest: float = 0.0
    problem: str = ""
    #: Whether workers have requests or streams that are not answered yet.
    is_busy: bool = False


class PoolObserver:
    """State of one pool: the last counters of gateways and workers, and the batch curves learned from them."""

    def __init__(self, slo_seconds: float, cost_per_worker: float = 1.0) -> None:
        self._slo_seconds = slo_seconds
        self._cost_per_worker = cost_per_worker
        self._offered = OfferedLoad()
        self._answered = AnsweredLoad()
        self._shares = ModelShares()
        self._load = _Load()
        self._workers: dict[str, WorkerCapacity] = {}
        #: By model: its share of the requests of the last readings.
        self._mix: dict[str, float] = {}
        self._queue_wait = 0.0
        #: Median capacity of the ready workers that are measured, when there were any.
        self._usual = 0.0
        #: Of the last reading, and seconds between the last two; None: there was none.
        self._instant: float | None = None
        self._elapsed: float | None = None

    def observe(
        self, reading: FleetReading, members: PoolMembers, now: float, time_of_day: float | None
    ) -> Observation:
        """``now``: of the monotonic clock. A reading no newer than the last one is not counted again."""
        steps = self.observe_in_steps(reading, members, now, time_of_day)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: Observation = end.value
                return found

    def observe_in_steps(
        self, reading: FleetReading, members: PoolMembers, now: float, time_of_day: float | None
    ) -> Generator[None, None, Observation]:
        """``observe``, a worker in each step: one with a thousand busy models takes 25 ms."""
        if self._instant is None or reading.instant > self._instant:
            self._elapsed = None if self._instant is None else reading.instant - self._instant
            self._instant = reading.instant
            self._workers = {name: self._workers.get(name) or WorkerCapacity() for name in {*members.own}}
            others = {name for shared in members.shared.values() for name in shared.others} - self._workers.keys()
            self._answered.keep(self._workers.keys() | others)
            here: dict[str, Answered] = {}
            elsewhere: dict[str, Answered] = {}
            for name in (*self._workers, *others):
                yield
                self._take_worker(name, reading, members)
                self._answered.add(name, here if name in self._workers else elsewhere, reading.instant)
            yield
            self._load = self._combined(here, elsewhere, reading, members)
            self._take_mix(self._load.by_model)
            self._take_queue_wait(members)
        capacities: dict[str, float] = {}
        for name, worker in self._workers.items():
            yield
            capacities[name] = worker.rate(self._slo_seconds, self._mix)
        measured = [rate for name in members.ready if (rate := capacities.get(name, 0.0)) > 0]
        if measured:
            self._usual = median(measured)

        def of(names: tuple[str, ...]) -> tuple[float, ...]:
            return tuple(capacities.get(name, 0.0) or self._usual for name in names)

        return Observation(
            now,
            self._with_waiting(members),
            self._load.refused,
            self._queue_wait,
            of(members.ready),
            (self._usual,) * members.pending,
            of(members.standby),
            of(members.draining),
            max(0.0, now - self._load.oldest),
            self._cost_per_worker,
            time_of_day,
            is_busy=self._load.is_busy,
            problem=self._load.problem,
        )

    def _take_worker(self, name: str, reading: FleetReading, members: PoolMembers) -> None:
        statistics = reading.workers.get(name)
        instant = reading.instant if statistics is None else reading.instant_of(statistics)
        if statistics is not None:
            self._answered.take(name, statistics, instant, members.models)
        if name in self._workers:
            self._workers[name].take(statistics, instant, members.models)

    def _combined(
        self,
        here: Mapping[str, Answered],
        elsewhere: Mapping[str, Answered],
        reading: FleetReading,
        members: PoolMembers,
    ) -> _Load:
        """What gateways received and what workers answered: each of them sees requests that the other does not."""
        received = self._offered.take(reading, members.models, is_empty=members.is_empty)
        stages = self._answered.stages(members.own)
        by_model: dict[str, float] = {}
        refused = waiting = 0.0
        for model, at_gateways in received.by_model.items():
            answered, share = here.get(model, NOTHING), 1.0
            if model in members.shared:
                others = elsewhere.get(model, NOTHING).successes
                share = self._share(model, answered.successes, others, at_gateways, members.shared[model].pools)
            refused += at_gateways.refused * share
            waiting += at_gateways.waiting * share
            offered = at_gateways.offered * share
            if stages is not None and model not in stages:
                # A request that one worker rejects may be sent to the next: where gateways send them, failures of
                # workers are attempts, and the gateways count the requests that failed for good.
                failed = at_gateways.refused * share if at_gateways.offered else answered.failures
                offered = max(offered, answered.successes + failed)
            by_model[model] = offered
        in_flight = [each.in_flight for name in members.own if (each := reading.workers.get(name)) is not None]
        return _Load(
            fsum(by_model.values()) if received.is_known else None,
            refused,
            by_model,
            waiting,
            received.oldest,
            "" if received.is_known else received.problem,
            waiting > 0 or any(in_flight),
        )

    def _share(self, model: str, here: float, elsewhere: float, at_gateways: Rates, pools: int) -> float:
        is_pressed = at_gateways.refused > 0 or at_gateways.waiting > 0
        return self._shares.share(model, here, elsewhere, pools, self._elapsed or 0.0, is_pressed=is_pressed)

    def _take_queue_wait(self, members: PoolMembers) -> None:
        answered = sum(self._workers[name].queue_count for name in members.ready)
        if answered:
            waited = sum(self._workers[name].queue_ns for name in members.ready)
            self._queue_wait = waited * _NANOSECOND / answered
        elif not (members.ready and self._load.waiting):
            # Requests that wait for a pool's first worker say nothing about the capacity of its workers.
            self._queue_wait = 0.0

    def _take_mix(self, rates: Mapping[str, float]) -> None:
        total = fsum(rates.values())
        if total <= 0:
            return
        gain = 1.0 if self._elapsed is None or not self._mix else 1 - exp(-self._elapsed / _MIX_SECONDS)
        self._mix = {
            model: before + (rate / total - before) * gain
            for model, rate in rates.items()
            if (before := self._mix.get(model, 0.0)) or rate
        }

    def _with_waiting(self, members: PoolMembers) -> float | None:
        """The offered load. While no worker is ready, requests that wait are load, whenever they arrived."""
        load = self._load
        if members.ready or load.waiting <= 0 or self._elapsed is None:
            return load.offered
        if load.offered is None and not members.is_empty:
            return None
        return max(load.offered or 0.0, load.waiting / self._elapsed)
