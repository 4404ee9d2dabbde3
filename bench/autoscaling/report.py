"""What callers saw of a load that rises and falls, and what the pool did meanwhile. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.control.history import OK, Answer

_SECOND = 1_000_000_000
#: Share of a second's requests that may be late or refused: then its p99 is within the SLO.
_ALLOWED = 0.01


@dataclass(frozen=True)
class Phase:
    """A time of constant load; instants of the clients' clock."""

    name: str
    began_ns: int
    ended_ns: int


@dataclass(frozen=True)
class PhaseReport:
    name: str
    requests: int
    #: Answered after the SLO, and answered with an error.
    late: int
    refused: int
    #: Errors by their beginnings.
    errors: Mapping[str, int]
    p50_ms: float
    p99_ms: float
    #: Seconds from the beginning until the end of the last second whose p99 was not within the SLO; 0: all were.
    settled_seconds: float

    def row(self) -> str:
        return (
            f"| {self.name} | {self.requests:,} | {self.refused:,} | {self.late:,} | {self.p50_ms:.0f} "
            f"| {self.p99_ms:.0f} | {self.settled_seconds:.0f} |"
        )


HEADER = (
    "| load | requests | refused | late | p50 ms | p99 ms | seconds until p99 was within the SLO |\n"
    "|---|---:|---:|---:|---:|---:|---:|"
)


def phase_report(phase: Phase, answers: Sequence[Answer], slo_seconds: float) -> PhaseReport:
    """Of the requests that began in a phase. A second without requests says nothing."""
    slo_ns = slo_seconds * 1e9
    own = [each for each in answers if phase.began_ns <= each.started_ns < phase.ended_ns]
    good = [each.latency_ns / 1e6 for each in own if each.outcome == OK]
    refused = [each for each in own if each.outcome != OK]
    late = [each for each in own if each.outcome == OK and each.latency_ns > slo_ns]
    totals = Counter((each.started_ns - phase.began_ns) // _SECOND for each in own)
    bad = Counter((each.started_ns - phase.began_ns) // _SECOND for each in (*refused, *late))
    outside = [second for second, count in bad.items() if count > _ALLOWED * totals[second]]
    return PhaseReport(
        phase.name,
        len(own),
        len(late),
        len(refused),
        dict(Counter(each.error[:60] for each in refused).most_common(4)),
        float(np.quantile(good, 0.5)) if good else 0.0,
        float(np.quantile(good, 0.99)) if good else 0.0,
        float(max(outside) + 1) if outside else 0.0,
    )


def worker_seconds(sizes: Sequence[tuple[float, int]], began: float, ended: float) -> float:
    """``sizes``: (instant, workers from then on), in order, the first not after ``began``."""
    total = 0.0
    ends = [*(at for at, _ in sizes[1:]), ended]
    for (at, workers), end in zip(sizes, ends, strict=True):
        total += workers * max(0.0, min(end, ended) - max(at, began))
    return total
