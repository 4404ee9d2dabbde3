"""A run in figures: counts, rates and percentiles with confidence intervals, of all requests and of each kind.

Latency is counted from the intended instant: a server that stalls delays the requests that would have come meanwhile,
and a generator that waits for it must not hide that (coordinated omission). Latency from the sending stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isochrone.bench.analysis.binomial import CONFIDENCE
from isochrone.bench.analysis.distribution import Distribution, Estimate, Evidence, evidence_of
from isochrone.bench.results.outcomes import FAILED, LATE, OK, OUTCOME_NAMES, REJECTED, UNSENT, Outcomes, Run
from isochrone.clock import MILLISECOND, NEVER, SECOND

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Part:
    """The figures of all requests of a run, or of one kind."""

    name: str
    #: By the names of outcomes.
    counts: Mapping[str, int]
    #: Requests per second of the measured time: intended, answered, and answered within the deadline.
    intended_rate: float
    rate: float
    goodput: float
    #: Rejected, failed and unsent requests.
    errors: Evidence
    #: Of answered requests, from the intended instant; and the same from the instant of sending.
    latency: Distribution
    latency_from_sending: Distribution
    #: From the intended instant, of the answered requests that have a first token.
    first_token: Distribution
    #: Of all requests, for limits: those without an answer, or without a first token, take ``NEVER``.
    every_latency: Distribution
    every_first_token: Distribution
    #: Of all requests, in order of time.
    outcome: NDArray[np.uint8]

    @property
    def total(self) -> int:
        return len(self.outcome)

    @property
    def answered(self) -> int:
        return len(self.latency)

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.total,
            "outcomes": dict(self.counts),
            "intended_rate": self.intended_rate,
            "rate": self.rate,
            "goodput": self.goodput,
            "error_share": _interval(self.errors.share),
            "latency_ms": _percentiles(self.latency),
            "latency_from_sending_ms": _percentiles(self.latency_from_sending),
            "first_token_ms": _percentiles(self.first_token),
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run."""

    target: str
    rate: float | None
    in_flight: int | None
    seconds: float
    started_at: str
    total: Part
    #: In order of ``Run.kinds``.
    kinds: tuple[Part, ...]
    #: Message -> count.
    errors: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """Durations in milliseconds; bounds that the requests are too few for are null."""
        return {
            "target": self.target,
            "rate": self.rate,
            "in_flight": self.in_flight,
            "seconds": self.seconds,
            "started_at": self.started_at,
            "confidence": CONFIDENCE,
            "total": self.total.as_json(),
            "kinds": {part.name: part.as_json() for part in self.kinds},
            "errors": dict(self.errors),
        }


def summarize(run: Run) -> Summary:
    outcomes = run.outcomes
    return Summary(
        target=run.target,
        rate=run.rate,
        in_flight=run.in_flight,
        seconds=run.seconds,
        started_at=run.started_at,
        total=_part("all", outcomes, np.ones(len(outcomes), dtype=np.bool_), run.seconds),
        kinds=tuple(
            _part(name, outcomes, outcomes.kind == number, run.seconds) for number, name in enumerate(run.kinds)
        ),
        errors=run.errors,
    )


def is_answered(outcome: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.isin(outcome, (OK, LATE))


def is_error(outcome: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.isin(outcome, (REJECTED, FAILED, UNSENT))


def _part(name: str, outcomes: Outcomes, member: NDArray[np.bool_], seconds: float) -> Part:
    outcome = outcomes.outcome[member]
    intended, ended = outcomes.intended_ns[member], outcomes.ended_ns[member]
    first = outcomes.first_ns[member]
    answered = is_answered(outcome)
    latency = ended - intended
    first_token = first - intended
    has_first = answered & (first >= 0)
    counts = np.bincount(outcome, minlength=len(OUTCOME_NAMES))
    return Part(
        name=name,
        counts={label: int(count) for label, count in zip(OUTCOME_NAMES, counts, strict=True)},
        intended_rate=len(outcome) / seconds if seconds > 0 else 0.0,
        rate=_rate(latency[answered], ended[answered], seconds),
        goodput=_rate(latency[outcome == OK], ended[outcome == OK], seconds),
        errors=evidence_of(is_error(outcome)),
        latency=Distribution(latency[answered]),
        latency_from_sending=Distribution((ended - outcomes.sent_ns[member])[answered]),
        first_token=Distribution(first_token[has_first]),
        every_latency=Distribution(np.where(answered, latency, NEVER)),
        every_first_token=Distribution(np.where(has_first, first_token, NEVER)),
        outcome=outcome,
    )


def _rate(latency: NDArray[np.int64], ended: NDArray[np.int64], seconds: float) -> float:
    """Answers per second within the measured time.

    Answers after its end do not count: an overloaded server answers them later. The first answer comes no earlier than
    the shortest latency, so that much of the start is left out; long latencies would lower the rate otherwise.
    """
    if not len(latency):
        return 0.0
    measured = seconds - max(0, int(latency.min())) / SECOND
    return float(np.count_nonzero(ended <= seconds * SECOND)) / measured if measured > 0 else 0.0


def _percentiles(distribution: Distribution) -> dict[str, Any] | None:
    if not len(distribution):
        return None
    figures: dict[str, Any] = {}
    for percent in PERCENTILES:
        estimate = distribution.percentile(percent)
        assert estimate is not None
        figures[f"p{percent:g}"] = _interval(estimate, MILLISECOND)
    figures["max"] = distribution.highest / MILLISECOND
    return figures


def _interval(estimate: Estimate, unit: float = 1) -> dict[str, float | None]:
    return {
        "value": estimate.value / unit,
        "low": estimate.low / unit,
        "high": estimate.high / unit if math.isfinite(estimate.high) else None,
    }
