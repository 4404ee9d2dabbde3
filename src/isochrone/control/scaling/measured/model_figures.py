"""Figures of the models of planned pools for model placement, from readings of the fleet's counters. Pure.

What is not known is absent: the rate of a model while a gateway is silent; all figures of a model that has requests and
no batch times, such as one that generates. A model of an ensemble has a rate only if all models of the ensemble have
one: the planner adds them up, and half of a load would give replicas back that the other half needs.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from math import floor, log10

from isochrone.control.placement.figures import UNMEASURED, Figures
from isochrone.control.placement.needs import BatchCurve
from isochrone.control.scaling.measured.answered_load import NOTHING, Answered, AnsweredLoad
from isochrone.control.scaling.measured.model_shares import ModelShares
from isochrone.control.scaling.measured.offered_load import GatewayLoad, OfferedLoad
from isochrone.control.scaling.measured.steady_rate import SteadyRate
from isochrone.control.scaling.measured.worker_capacity import WorkerCapacity
from isochrone.control.scaling.reading.fleet_counters import FleetReading, ModelConfiguration

#: Times of batches hold until they differ by this part; so do rows per request.
_TIME_MARGIN, _ROWS_MARGIN = 0.1, 0.05
#: A larger batch is a point of a curve only if a row in it takes less time than this part of a row in the one before.
_GAIN = 0.9
#: While gateways do not say, rates hold for so many seconds.
_CARRY_SECONDS = 15.0
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class PlannedModels:
    """The committed models of planned pools, and their workers."""

    #: By model: of an ensemble, the models that it runs.
    stages: Mapping[str, tuple[str, ...]]
    #: By worker of a planned pool: its kind of device.
    devices: Mapping[str, str]
    #: By model that pools which are not planned have, too: how many of these.
    other_pools: Mapping[str, int] = field(default_factory=dict)
    #: Models without a replica that could be given back.
    single: Collection[str] = ()


@dataclass(slots=True)
class _Merged:
    """What all workers say of one model."""

    #: By kind of device, by rows: the weight of the executions, and their seconds.
    batches: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)
    rows: float = 0.0
    requests: float = 0.0
    configurations: list[ModelConfiguration | None] = field(default_factory=list)

    @property
    def steps(self) -> tuple[str, ...]:
        return next((each.steps for each in self.configurations if each is not None and each.steps), ())

    @property
    def has_batch_times(self) -> bool | None:
        """None: not known."""
        known = [each.has_batch_times for each in self.configurations if each is not None]
        return all(known) if known else None


class ModelFigures:
    """State of all planned pools of a fleet. ``known``: the figures of the leader before."""

    def __init__(self, known: Figures = UNMEASURED) -> None:
        self.figures = known
        self._offered = OfferedLoad()
        self._answered = AnsweredLoad()
        self._shares = ModelShares()
        self._workers: dict[str, WorkerCapacity] = {}
        self._rates: dict[str, SteadyRate] = {}
        #: By model: rows per second of the leader before, until its rows per request are known.
        self._inherited = dict(known.rates)
        self._rows_per_request: dict[str, float] = {}
        #: Of the last reading; and of the last one with which the rates were known, at first of the first one.
        self._instant: float | None = None
        self._known_at = 0.0

    def take(self, reading: FleetReading, models: PlannedModels) -> Figures:
        steps = self.take_in_steps(reading, models)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: Figures = end.value
                return found

    def take_in_steps(self, reading: FleetReading, models: PlannedModels) -> Generator[None, None, Figures]:
        """``take``, a worker in each step, then a figure of all models."""
        if self._instant is not None and reading.instant <= self._instant:
            return self.figures
        elapsed = 0.0 if self._instant is None else min(reading.instant - self._instant, _CARRY_SECONDS)
        if self._instant is None:
            self._known_at = reading.instant
        self._instant = reading.instant
        here: dict[str, Answered] = {}
        elsewhere: dict[str, Answered] = {}
        self._workers = {name: self._workers.get(name) or WorkerCapacity() for name in models.devices}
        self._answered.keep(reading.workers.keys())
        for name in reading.workers:
            yield
            self._take_worker(name, reading, models)
            self._answered.add(name, here if name in models.devices else elsewhere, reading.instant)
        yield
        merged = self._merged(models)
        yield
        load = self._offered.take(reading, models.stages.keys(), is_empty=False)
        yield
        if load.is_known and elapsed:
            self._known_at = reading.instant
            requests = self._requests(load, here, elsewhere, models, merged, elapsed)
            yield
            self._take_rates(requests, models, merged, elapsed)
            yield
        self._keep_only(models.stages)
        is_known = reading.instant - self._known_at <= _CARRY_SECONDS
        curves = self._curves(models, merged)
        yield
        self.figures = Figures(
            self._published_rates(models, merged, curves) if is_known else {},
            curves,
            self._instances(models, merged),
        )
        return self.figures

    def _take_worker(self, name: str, reading: FleetReading, models: PlannedModels) -> None:
        statistics = reading.workers[name]
        if statistics is None:
            return
        instant = reading.instant_of(statistics)
        its = [model for model in statistics.models if model in models.stages]
        self._answered.take(name, statistics, instant, its)
        if name in self._workers:
            self._workers[name].take(statistics, instant, its)

    def _merged(self, models: PlannedModels) -> dict[str, _Merged]:
        found: dict[str, _Merged] = {}
        for name, worker in self._workers.items():
            for model, curve in worker.curves():
                if model not in models.stages:
                    continue
                merged = found.setdefault(model, _Merged())
                merged.configurations.append(curve.configuration)
                rows, requests = curve.answered
                merged.rows += rows
                merged.requests += requests
                batches = merged.batches.setdefault(models.devices[name], {})
                for size, (weight, seconds) in curve.executions.items():
                    before = batches.get(size, (0.0, 0.0))
                    batches[size] = before[0] + weight, before[1] + seconds
        return found

    # Rates.

    def _requests(
        self,
        load: GatewayLoad,
        here: Mapping[str, Answered],
        elsewhere: Mapping[str, Answered],
        models: PlannedModels,
        merged: Mapping[str, _Merged],
        elapsed: float,
    ) -> dict[str, float]:
        """Requests per second of each model that planned pools get, with those of the ensembles that run it."""
        stages = {stage for each in models.stages.values() for stage in each}
        own: dict[str, float] = {}
        for model, at_gateways in load.by_model.items():
            answered, share = here.get(model, NOTHING), 1.0
            if others := models.other_pools.get(model, 0):
                is_pressed = at_gateways.refused > 0 or at_gateways.waiting > 0
                beside = elsewhere.get(model, NOTHING).successes
                share = self._shares.share(
                    model, answered.successes, beside, others + 1, elapsed, is_pressed=is_pressed
                )
            own[model] = at_gateways.offered * share
            if model not in stages:
                # Where gateways send the requests, failures of workers are attempts, which may be sent again.
                failed = at_gateways.refused * share if at_gateways.offered else answered.failures
                own[model] = max(own[model], answered.successes + failed)
        totals = _with_ensembles(own, {model: _steps(model, models, merged) for model in models.stages})
        return {model: max(total, here.get(model, NOTHING).successes) for model, total in totals.items()}

    def _take_rates(
        self, requests: Mapping[str, float], models: PlannedModels, merged: Mapping[str, _Merged], elapsed: float
    ) -> None:
        for model in models.stages:
            each = merged.get(model)
            if each is not None and each.requests > 0:
                rows, before = each.rows / each.requests, self._rows_per_request.get(model)
                if before is None or abs(rows - before) > _ROWS_MARGIN * before:
                    self._rows_per_request[model] = rows
            if model not in self._rates:
                self._rates[model] = SteadyRate()
            rate, inherited = self._rates[model], self._inherited.get(model)
            if inherited is not None and (not inherited or model in self._rows_per_request):
                rate.value = inherited / self._rows_per_request.get(model, 1.0)
                del self._inherited[model]
            rate.take(requests.get(model, 0.0), elapsed, is_single=model in models.single)

    def _published_rates(
        self, models: PlannedModels, merged: Mapping[str, _Merged], curves: Collection[str]
    ) -> dict[str, float]:
        """Rows per second."""
        found: dict[str, float] = {}
        for model, stages in models.stages.items():
            rate, each = self._rates.get(model), merged.get(model)
            if model in self._inherited:
                found[model] = self._inherited[model]
            elif rate is not None and rate.value is not None and (each is None or each.has_batch_times is not False):
                is_timed = model in self._rows_per_request and (bool(stages) or model in curves)
                if is_timed or not rate.value:
                    found[model] = _rounded(rate.value * self._rows_per_request.get(model, 1.0))
        unknown = models.stages.keys() - found.keys()
        while True:
            linked = {
                model
                for ensemble, stages in models.stages.items()
                if not unknown.isdisjoint((ensemble, *stages))
                for model in (ensemble, *stages)
            }
            if linked <= unknown:
                return {model: rate for model, rate in found.items() if model not in unknown}
            unknown |= linked

    # Times.

    def _curves(self, models: PlannedModels, merged: Mapping[str, _Merged]) -> dict[str, dict[str, BatchCurve]]:
        """By model, by kind of device. Those of a kind whose workers say nothing hold."""
        found: dict[str, dict[str, BatchCurve]] = {}
        for model, stages in models.stages.items():
            if stages:
                # Its times last as long as those of its stages, and of others that run beside them.
                continue
            before = self.figures.curves.get(model, {})
            each, now = merged.get(model), dict(before)
            if each is not None and each.has_batch_times is False:
                continue
            if each is not None and each.has_batch_times:
                for device, batches in each.batches.items():
                    means = {rows: seconds / weight for rows, (weight, seconds) in batches.items() if seconds > 0}
                    if means and not (device in before and _holds(before[device], means)):
                        now[device] = _curve(means)
            if now:
                found[model] = now
        return found

    def _instances(self, models: PlannedModels, merged: Mapping[str, _Merged]) -> dict[str, int]:
        """The least of any worker."""
        found: dict[str, int] = {}
        for model, stages in models.stages.items():
            each = merged.get(model)
            known = [one.instances for one in each.configurations if one is not None] if each is not None else []
            number = min(known) if known else self.figures.instances.get(model)
            if number is not None and not stages and not (each is not None and each.has_batch_times is False):
                found[model] = max(1, number)
        return found

    def _keep_only(self, models: Collection[str]) -> None:
        self._rates = {model: each for model, each in self._rates.items() if model in models}
        self._rows_per_request = {model: each for model, each in self._rows_per_request.items() if model in models}
        self._inherited = {model: each for model, each in self._inherited.items() if model in models}


def _steps(model: str, models: PlannedModels, merged: Mapping[str, _Merged]) -> tuple[str, ...]:
    """The models that an ensemble runs, each as often as it does; as far as that is known, else once."""
    each = merged.get(model)
    return (each.steps if each is not None else ()) or models.stages[model]


def _with_ensembles(own: Mapping[str, float], steps: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """Rates with those of the ensembles that run a model, which may run in others themselves."""
    totals = dict(own)

    def add(model: str, rate: float, within: tuple[str, ...]) -> None:
        for step in steps.get(model, ()):
            if step not in within:
                totals[step] = totals.get(step, 0.0) + rate
                add(step, rate, (*within, step))

    for model, rate in own.items():
        if rate:
            add(model, rate, (model,))
    return totals


def _curve(means: Mapping[int, float]) -> BatchCurve:
    """The points at which larger batches are worth it; the others would not change a plan, only this curve."""
    points: list[tuple[int, float]] = []
    for rows, seconds in sorted(means.items()):
        if not points or seconds / rows < _GAIN * points[-1][1] / points[-1][0]:
            points.append((rows, _rounded(seconds)))
    return BatchCurve(tuple(points))


def _holds(curve: BatchCurve, means: Mapping[int, float]) -> bool:
    """Whether a curve still says what is measured: its points, the fewest rows and the best time of a row."""

    def is_near(before: float, now: float) -> bool:
        return abs(now - before) <= _TIME_MARGIN * before

    best = min(seconds / rows for rows, seconds in curve.points)
    return (
        min(means) == curve.points[0][0]
        and all(rows not in means or is_near(seconds, means[rows]) for rows, seconds in curve.points)
        and is_near(best, min(seconds / rows for rows, seconds in means.items()))
    )


def _rounded(number: float) -> float:
    return round(number, _DIGITS - 1 - floor(log10(number))) if number > 0 else 0.0
