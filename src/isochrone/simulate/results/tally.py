"""Outcomes of a run: every request has exactly one, counted per phase and kind of request.

Latency is as the client sees it. A request that is given up at its deadline counts as late, with the time that its
client waited. Rejected and failed requests have no latency: a fast rejection must not improve the percentiles.
"""

from __future__ import annotations

from typing import Any

from isochrone.clock import MILLISECOND
from isochrone.log_histogram import LogHistogram

#: Percentiles are within 0.2 %.
_BITS = 9
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


class Tally:
    """Outcomes of one kind of request in one phase."""

    __slots__ = ("failed", "in_time", "late", "latency", "offered", "rejected", "retried")

    def __init__(self) -> None:
        self.offered = 0
        #: Answered before the deadline, if there is one.
        self.in_time = 0
        #: Answered after the deadline, given up at it, or dropped because of it after admission.
        self.late = 0
        #: Rejected by the admission of the gateway or the worker.
        self.rejected = 0
        #: Errors, and requests without an eligible worker.
        self.failed = 0
        #: Attempts beyond the first.
        self.retried = 0
        self.latency = LogHistogram(_BITS)

    @property
    def settled(self) -> int:
        return self.in_time + self.late + self.rejected + self.failed

    def merge(self, other: Tally) -> None:
        self.offered += other.offered
        self.in_time += other.in_time
        self.late += other.late
        self.rejected += other.rejected
        self.failed += other.failed
        self.retried += other.retried
        self.latency.merge(other.latency)

    def figures(self, seconds: float) -> dict[str, Any]:
        """Plain figures: ms, requests per second, shares."""
        offered = self.offered or 1
        percentiles = {
            f"{name}_ms": round(self.latency.percentile(share) / MILLISECOND, 4) for name, share in PERCENTILES.items()
        }
        return {
            "offered": self.offered,
            "in_time": self.in_time,
            "late": self.late,
            "rejected": self.rejected,
            "failed": self.failed,
            "retried": self.retried,
            **percentiles,
            "mean_ms": round(self.latency.mean / MILLISECOND, 4),
            "max_ms": round(self.latency.highest / MILLISECOND, 4),
            "goodput_per_s": round(self.in_time / seconds, 3) if seconds else 0.0,
            "missed_share": round(self.late / offered, 6),
            "rejected_share": round(self.rejected / offered, 6),
            "failed_share": round(self.failed / offered, 6),
        }
