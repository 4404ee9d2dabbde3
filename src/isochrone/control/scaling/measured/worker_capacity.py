"""The capacity of one worker at the SLO, learned from its batch statistics. Pure.

For each model and each batch size, the mean time of the last executions: old ones fade with time, so that a worker that
becomes slower shows it within a minute. Batch sizes that have not run lately follow those that have: a worker that is
slower with small batches is not as fast as it was with large ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import exp, fsum

from isochrone.control.autoscaler.capacity import rate_at_slo
from isochrone.control.scaling.reading.fleet_counters import (
    BatchCounts,
    ModelConfiguration,
    VersionStatistics,
    WorkerStatistics,
)

#: In this time, the weight of an execution falls to 1/e.
_FADE_SECONDS = 30.0
#: What was learned before keeps the weight of at least so many executions: a single slow one is noise. Lifetime totals
#: of a worker that is read for the first time get no more.
_LEAST_WEIGHT = 4.0
#: In one reading, batch sizes that did not run follow the others by at most this factor.
_MOST_CHANGE = 2.0
#: A batch curve is a list with an entry for each row; larger batches count only where none of these keeps the SLO.
_MOST_ROWS = 4096
#: Answers from a cache cost time, too: they make a request no cheaper than this part of a row.
_LEAST_ROWS = 0.1
_NANOSECOND = 1e-9
_NEVER = VersionStatistics({})
_NOTHING = 0.0, 0.0


class BatchCurve:
    """One model on one worker."""

    __slots__ = ("_rate", "_requests", "_rows", "_sizes", "configuration", "version")

    def __init__(self) -> None:
        #: By rows: faded numbers of executions and of their seconds.
        self._sizes: dict[int, tuple[float, float]] = {}
        #: Faded numbers of rows that were executed, and of requests that were answered.
        self._rows = self._requests = 0.0
        #: The version that ran most lately, and its configuration; None: not known.
        self.version = ""
        self.configuration: ModelConfiguration | None = None
        #: The SLO and the rate that it was computed for last.
        self._rate: tuple[float, float] | None = None

    def take(self, batches: Mapping[int, tuple[float, float]], requests: float, fade: float) -> None:
        """Learn from executions since the last call: by rows, their number and seconds. ``fade``: what the weight of
        earlier ones is multiplied with."""
        expected = after = executed = 0.0
        sizes = self._sizes
        for rows, (executions, seconds) in batches.items():
            executed += rows * executions
            weight, total = sizes.get(rows, _NOTHING)
            if weight:
                mean = total / weight
                weight = max(weight * fade, min(weight, _LEAST_WEIGHT))
                total = weight * mean
                expected += executions * mean
                after += executions * (total + seconds) / (weight + executions)
            sizes[rows] = weight + executions, total + seconds
        if expected > 0 and len(sizes) > len(batches):
            change = min(_MOST_CHANGE, max(1 / _MOST_CHANGE, after / expected))
            for rows in sizes.keys() - batches.keys():
                weight, total = sizes[rows]
                sizes[rows] = weight, total * change
        if executed > 0 and requests > 0:
            self._rows = self._rows * fade + executed
            self._requests = self._requests * fade + requests
        self._rate = None

    def begin(self, batches: Mapping[int, tuple[float, float]], requests: float) -> None:
        """Learn from lifetime totals, which weigh little."""
        self.take(batches, requests, 0.0)
        for rows, (weight, seconds) in self._sizes.items():
            part = min(1.0, _LEAST_WEIGHT / weight)
            self._sizes[rows] = weight * part, seconds * part
        if self._requests > _LEAST_WEIGHT:
            self._rows, self._requests = self._rows * _LEAST_WEIGHT / self._requests, _LEAST_WEIGHT

    @property
    def executions(self) -> Mapping[int, tuple[float, float]]:
        """By rows: faded numbers of executions and of their seconds."""
        return self._sizes

    @property
    def answered(self) -> tuple[float, float]:
        """Faded numbers of rows that were executed, and of requests that were answered."""
        return self._rows, self._requests

    def configure(self, version: str, configuration: ModelConfiguration | None) -> None:
        if configuration != self.configuration:
            self._rate = None
        self.version, self.configuration = version, configuration

    def rate(self, slo_seconds: float) -> float:
        """Requests per second; 0: nothing has been measured, or the number of instances is not known."""
        if self.configuration is None or not self.configuration.has_batch_times:
            return 0.0
        if self._rate is None or self._rate[0] != slo_seconds:
            self._rate = slo_seconds, self._computed(slo_seconds, self.configuration.instances)
        return self._rate[1]

    def _computed(self, slo_seconds: float, instances: int) -> float:
        means = {rows: seconds / weight for rows, (weight, seconds) in self._sizes.items() if seconds > 0}
        if not means:
            return 0.0
        curve = [0.0] * (min(_MOST_ROWS, max(means)) + 1)
        for rows, mean in means.items():
            if rows <= _MOST_ROWS:
                curve[rows] = mean
        rate = rate_at_slo(curve, slo_seconds, instances=instances)
        if not rate:
            # No number of workers keeps the SLO. The requests take the worker's time all the same.
            rows = min(means, key=lambda each: (means[each], -each))
            rate = rows / means[rows] * instances
        rows_per_request = max(_LEAST_ROWS, self._rows / self._requests) if self._requests > 0 else 1.0
        return rate / rows_per_request


class WorkerCapacity:
    """State of one worker."""

    __slots__ = ("_curves", "_instant", "_models", "_statistics", "queue_count", "queue_ns")

    def __init__(self) -> None:
        #: Of the pool's models and of the models that their steps run.
        self._curves: dict[str, BatchCurve] = {}
        self._models: Collection[str] = ()
        self._statistics: WorkerStatistics | None = None
        self._instant = 0.0
        #: Time in the queue of the requests that were answered between the last two readings, and their number.
        self.queue_ns = self.queue_count = 0

    def take(self, statistics: WorkerStatistics | None, instant: float, models: Collection[str]) -> None:
        """``models``: those of the pool. None: the worker did not say, and what was learned of it holds."""
        self.queue_ns = self.queue_count = 0
        self._models = models
        if statistics is None:
            return
        last, self._statistics = self._statistics, statistics
        fade, self._instant = exp((self._instant - instant) / _FADE_SECONDS), instant
        is_first = last is None
        before: Mapping[str, Mapping[str, VersionStatistics]] = {}
        if last is not None and last.incarnation == statistics.incarnation:
            before = last.models
        else:
            # A new process is measured anew.
            self._curves = {}
        followed = [*models]
        seen = set(followed)
        for model in followed:
            versions = statistics.models.get(model)
            if versions is None:
                self._curves.pop(model, None)
                continue
            self._take(model, versions, before.get(model, {}), fade, is_first=is_first)
            for step in _steps_of(versions) - seen:
                seen.add(step)
                followed.append(step)

    def _take(
        self,
        model: str,
        versions: Mapping[str, VersionStatistics],
        before: Mapping[str, VersionStatistics],
        fade: float,
        *,
        is_first: bool,
    ) -> None:
        batches: dict[int, tuple[float, float]] = {}
        curve = self._curves.get(model)
        busiest = "" if curve is None else curve.version
        requests = most = 0
        for version, now in versions.items():
            last = before.get(version, _NEVER)
            if now == last:
                continue
            if now.has_begun_again(last):
                last = _NEVER
            if not is_first:
                self.queue_ns += max(0, now.queue_ns - last.queue_ns)
                self.queue_count += now.queue_count - last.queue_count
            requests += now.successes - last.successes
            number = _add_executions(batches, now.batches, last.batches)
            if number > most:
                most, busiest = number, version
        if batches:
            curve = self._curves.setdefault(model, BatchCurve())
            if is_first:
                curve.begin(batches, requests)
            else:
                curve.take(batches, requests, fade)
        if curve is not None and busiest in versions:
            curve.configure(busiest, versions[busiest].configuration)

    def curves(self) -> Iterator[tuple[str, BatchCurve]]:
        """Of each model that the worker has and that has run."""
        present = self._statistics.models if self._statistics is not None else {}
        return ((model, curve) for model, curve in self._curves.items() if model in present)

    def rate(self, slo_seconds: float, mix: Mapping[str, float]) -> float:
        """Requests per second of the models in ``mix``, by the share of each, as far as they are measured; 0: none is.

        Each request takes its part of the worker's time: the rates are averaged harmonically."""
        rates = {model: rate for model in self._models if (rate := self._rate_of(model, slo_seconds)) > 0}
        weights = {model: mix[model] for model in rates if mix.get(model, 0.0) > 0}
        if not weights and not any(mix.values()):
            weights = dict.fromkeys(rates, 1.0)
        if not weights:
            return 0.0
        return fsum(weights.values()) / fsum(weight / rates[model] for model, weight in weights.items())

    def _rate_of(self, model: str, slo_seconds: float, within: tuple[str, ...] = ()) -> float:
        """Of one model; 0: not measured. The times of an ensemble last from its requests' arrivals to their answers,
        with those of others that run beside them. So its rate is that of its steps, one after the other."""
        curve = self._curves.get(model)
        if curve is None or curve.configuration is None or model in within:
            return 0.0
        steps = curve.configuration.steps
        if not steps:
            return curve.rate(slo_seconds)
        rates = [self._rate_of(step, slo_seconds, (*within, model)) for step in steps]
        return 1 / fsum(1 / rate for rate in rates) if all(rates) else 0.0


def _steps_of(versions: Mapping[str, VersionStatistics]) -> set[str]:
    return {step for each in versions.values() if each.configuration is not None for step in each.configuration.steps}


def _add_executions(
    batches: dict[int, tuple[float, float]], now: Mapping[int, BatchCounts], last: Mapping[int, BatchCounts]
) -> int:
    """Add the executions between two readings, and their seconds, by rows. Returns their number."""
    number = 0
    for rows, (executions, compute_ns) in now.items():
        earlier = last.get(rows)
        if earlier is not None:
            executions -= earlier[0]
            compute_ns -= earlier[1]
        # A batch of no rows is no request; times that do not grow come from a clock that jumped.
        if rows > 0 and executions > 0 and compute_ns > 0:
            number += executions
            others = batches.get(rows, _NOTHING)
            batches[rows] = others[0] + executions, others[1] + compute_ns * _NANOSECOND
    return number
