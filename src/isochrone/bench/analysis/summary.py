"""A run in figures: counts, rates and percentiles with confidence intervals, of all requests and of each kind.

Latency is counted from the intended instant: a server that stalls delays the requests that would have come meanwhile,
and a generator that waits for it must not hide that (coordinated omission). Latency from the sending stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
    #: Of all requests, for limits: those without an answer take ``NEVER``.
    every_latency: Distribution
    #: Of all requests for a stream: those without a first token take ``NEVER``.
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
    return Summary(
        target=run.target,
        rate=run.rate,
        in_flight=run.in_flight,
        seconds=run.seconds,
        started_at=run.started_at,
        total=_part("all", run, None),
        kinds=tuple(_part(name, run, number) for number, name in enumerate(run.kinds)),
        errors=run.errors,
    )


def is_answered(outcome: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.isin(outcome, (OK, LATE))


def is_error(outcome: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.isin(outcome, (REJECTED, FAILED, UNSENT))


def unseen_ns(run: Run) -> int:
    """How long at the start of the window no answer can come: the shortest latency, without the warm-up."""
    answered = is_answered(run.outcomes.outcome)
    latency = (run.outcomes.ended_ns - run.outcomes.intended_ns)[answered]
    return max(0, int(latency.min() - run.warmup_seconds * SECOND)) if len(latency) else 0


def answer_instants(run: Run, members: Callable[[Outcomes], NDArray[np.bool_]]) -> NDArray[np.int64]:
    """When requests ended in the measured time, with those of the warm-up; ``members`` chooses among them.

    Requests that end after the window are left out, and those that were sent before it and end in it make up for them.
    """
    ended = np.concatenate([part.ended_ns[members(part)] for part in (run.outcomes, run.carried)])
    return ended[ended <= run.seconds * SECOND]


def _part(name: str, run: Run, kind: int | None) -> Part:
    """Of one kind; None: of all."""
    outcomes, seconds = run.outcomes, run.seconds

    def of_kind(part: Outcomes) -> NDArray[np.bool_]:
        return np.ones(len(part), dtype=np.bool_) if kind is None else part.kind == kind

    member = of_kind(outcomes)
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
        rate=_rate(run, lambda part: of_kind(part) & is_answered(part.outcome)),
        goodput=_rate(run, lambda part: of_kind(part) & (part.outcome == OK)),
        errors=evidence_of(is_error(outcome)),
        latency=Distribution(latency[answered]),
        latency_from_sending=Distribution((ended - outcomes.sent_ns[member])[answered]),
        first_token=Distribution(first_token[has_first]),
        every_latency=Distribution(np.where(answered, latency, NEVER)),
        every_first_token=Distribution(np.where(has_first, first_token, NEVER)[_streams(run, outcomes.kind[member])]),
        outcome=outcome,
    )


def _rate(run: Run, members: Callable[[Outcomes], NDArray[np.bool_]]) -> float:
    """Answers per second of the measured time in which they could come."""
    measured = run.seconds - unseen_ns(run) / SECOND
    return len(answer_instants(run, members)) / measured if measured > 0 else 0.0


def _streams(run: Run, kind: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """Which requests can have a first token; all of them where the run does not say."""
    if not run.streams:
        return np.ones(len(kind), dtype=np.bool_)
    return np.isin(kind, [number for number, name in enumerate(run.kinds) if name in run.streams])


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
