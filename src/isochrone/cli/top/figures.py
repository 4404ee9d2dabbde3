"""Rates and latency quantiles between two readings of a metrics page. Pure.

A figure that the page does not contain is None. Growth is that of each series, then summed: a version that is unloaded
takes its series away with it, and a process that restarts begins them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from isochrone.cli.top.readings import Reading

#: Two readings of a page, and the seconds between them.
Pair: TypeAlias = tuple[Reading, Reading, float]

#: Gauges of a page, and counters whose rates are shown.
_LEVELS = ("in_flight", "memory")
_RATES = ("requests", "rejected", "failures", "cpu")


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a process between two readings; None: not on its page."""

    requests: float | None = None
    rejected: float | None = None
    failures: float | None = None
    in_flight: float | None = None
    p99_ms: float | None = None
    #: Cores that it kept busy.
    cpu: float | None = None
    #: Bytes of resident memory.
    memory: float | None = None


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Figures of a model over all gateways and workers; None: not on their pages."""

    #: At the gateways: requests of clients.
    requests: float | None = None
    rejected: float | None = None
    failures: float | None = None
    #: On the workers: each request, and each step of an ensemble.
    runs: float | None = None
    in_flight: float | None = None
    p99_ms: float | None = None


def between(before: Reading, after: Reading, seconds: float) -> Figures:
    """The figures between two readings. A series that decreased (a restart) or appeared counts from 0."""
    rates = {name: _rate(before, after, name, seconds) for name in _RATES}
    levels = {name: after.sums.get(name) for name in _LEVELS}
    return Figures(**rates, **levels, p99_ms=_p99_ms([_since(before, after)]))


def of_models(gateways: Iterable[Pair], workers: Iterable[Pair]) -> dict[str, ModelFigures]:
    """By model, from the readings of every gateway and worker."""
    asked = [(before, after, seconds) for before, after, seconds in gateways if before.sums]
    run = list(workers)
    names = sorted({name for _, after, _ in (*asked, *run) for name in after.models})
    found = {}
    for name in names:
        at_gateways = [_of(name, *pair) for pair in asked]
        at_workers = [_of(name, *pair) for pair in run]
        grown = [_since(before, after) for before, after, _ in at_workers]
        found[name] = ModelFigures(
            requests=_total(_rate(*pair[:2], "requests", pair[2]) for pair in at_gateways),
            rejected=_total(_rate(*pair[:2], "rejected", pair[2]) for pair in at_gateways),
            failures=_total(_rate(*pair[:2], "failures", pair[2]) for pair in at_gateways),
            runs=_total(_rate(*pair[:2], name, pair[2]) for pair in at_workers for name in ("requests", "failures")),
            in_flight=_total(after.sums.get("in_flight") for _, after, _ in at_workers),
            p99_ms=_p99_ms(grown),
        )
    return found


def of_a_worker_alone(pair: Pair) -> dict[str, ModelFigures]:
    """By model, from the page of a worker whose gateways are not known: its requests are those that it answered."""
    found = of_models((), (pair,))
    parts = {name: of_part(name, pair) for name in found}
    return {
        name: replace(each, requests=parts[name].requests, rejected=parts[name].rejected, failures=parts[name].failures)
        for name, each in found.items()
    }


def of_part(model: str, pair: Pair) -> Figures:
    """The figures of one model on one process."""
    return between(*_of(model, *pair))


def _of(model: str, before: Reading, after: Reading, seconds: float) -> Pair:
    # A model that appeared in between counts from 0; without an earlier page there is no reading.
    empty = Reading({"in_flight": 0.0}) if before.sums else Reading()
    return before.models.get(model, empty), after.models.get(model, Reading()), seconds


def _total(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


def _rate(before: Reading, after: Reading, name: str, seconds: float) -> float | None:
    if name not in after.sums or not before.sums or seconds <= 0:
        return None
    earlier = before.counters.get(name, {})
    grown = sum(_growth(earlier.get(series, 0.0), count) for series, count in after.counters.get(name, {}).items())
    rate = grown / seconds
    # Sums of a strange page may be infinite.
    return rate if math.isfinite(rate) else None


def _growth(before: float, after: float) -> float:
    return after - before if after >= before else after


def _since(before: Reading, after: Reading) -> dict[float, float]:
    """By upper bound: requests between two readings."""
    total: dict[float, float] = {}
    if not before.sums:
        return total
    for series, buckets in after.histograms.items():
        earlier = before.histograms.get(series, {})
        grown = {bound: count - earlier.get(bound, 0.0) for bound, count in buckets.items()}
        for bound, count in (grown if all(count >= 0 for count in grown.values()) else buckets).items():
            total[bound] = total.get(bound, 0.0) + count
    return total


def _p99_ms(grown: Iterable[Mapping[float, float]]) -> float | None:
    """The p99 over several processes, which all have the same bounds."""
    total: dict[float, float] = {}
    for each in grown:
        for bound, count in each.items():
            total[bound] = total.get(bound, 0.0) + count
    p99 = quantile(total, 0.99)
    return None if p99 is None else p99 * 1000


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Interpolated linearly within its bucket, as in Prometheus; the highest finite bound if it lies above."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    rank = share * total
    below, count_below = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank:
            if math.isinf(bound):
                return below
            return below + (bound - below) * (rank - count_below) / (count - count_below)
        below, count_below = bound, count
    return below
