"""What is going on, from two readings of a metrics page: rates, and quantiles of what happened between them. Pure.

Gateways and workers of ours, and real Tritons, tell enough; what a page does not tell is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

_GATEWAY = "isochrone_gateway_"
#: Samples that are added up over their labels.
_SUMS = {
    f"{_GATEWAY}requests_total": "requests",
    f"{_GATEWAY}refused_total": "refused",
    f"{_GATEWAY}failures_total": "failures",
    f"{_GATEWAY}in_flight": "in_flight",
    "nv_inference_request_success": "requests",
    "nv_inference_request_failure": "failures",
    "nv_inference_pending_request_count": "in_flight",
}
_BUCKETS = "isochrone_request_duration_seconds_bucket"


@dataclass(frozen=True, slots=True)
class Reading:
    """One page at one moment."""

    sums: Mapping[str, float] = field(default_factory=dict)
    #: Upper bound in seconds → requests up to it.
    buckets: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figures:
    """Between two readings; None: not told."""

    requests: float | None = None
    refused: float | None = None
    failures: float | None = None
    in_flight: float | None = None
    p99_ms: float | None = None


def read_page(text: str) -> Reading:
    """Raises ``ValueError`` for a page that is none."""
    sums: dict[str, float] = {}
    buckets: dict[float, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in _SUMS:
                name = _SUMS[sample.name]
                sums[name] = sums.get(name, 0.0) + sample.value
            elif sample.name == _BUCKETS and sample.labels.get("stage") == "request":
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return Reading(sums, buckets)


def between(before: Reading, after: Reading, seconds: float) -> Figures:
    """Counters that went back (a restart) count from nothing."""
    rates = {name: _rate(before.sums, after.sums, name, seconds) for name in ("requests", "refused", "failures")}
    p99 = quantile(_since(before.buckets, after.buckets), 0.99)
    return Figures(**rates, in_flight=after.sums.get("in_flight"), p99_ms=None if p99 is None else p99 * 1000)


def _rate(before: Mapping[str, float], after: Mapping[str, float], name: str, seconds: float) -> float | None:
    if name not in after or name not in before or seconds <= 0:
        return None
    grown = after[name] - before[name]
    return (grown if grown >= 0 else after[name]) / seconds


def _since(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    grown = {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
    return grown if all(count >= 0 for count in grown.values()) else dict(after)


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Inside its bucket on a straight line, as Prometheus does; the last bound for what lies above all."""
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
