"""Durations of a loop that may run for months: counts and sums of its whole life, quantiles of its last minutes.

A p99 of the whole life hardly moves after days, whatever happens now. Memory does not grow with ticks.
"""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.clock import MILLISECOND
from isochrone.log_histogram import LogHistogram

#: Quantiles are exact to 3 %.
_BITS = 5


@dataclass(frozen=True, slots=True)
class Durations:
    """What was measured of one duration, in ms: p50 and p99 of the last minutes, the rest of the loop's whole life."""

    count: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float


class DurationCounts:
    """Quantiles are those of the values since the last ``turn`` but one."""

    __slots__ = ("_before", "_count", "_highest", "_recent", "_total")

    def __init__(self) -> None:
        self._before = LogHistogram(_BITS)
        self._recent = LogHistogram(_BITS)
        #: Of all values before the last turn.
        self._count = self._total = self._highest = 0

    def add(self, nanoseconds: int) -> None:
        self._recent.add(nanoseconds)

    def turn(self) -> None:
        """Begin another part of the window; the one before the last is discarded."""
        self._count, self._total, self._highest = self.count, self.total, self.highest
        self._before, self._recent = self._recent, LogHistogram(_BITS)

    @property
    def count(self) -> int:
        return self._count + self._recent.total

    @property
    def total(self) -> int:
        return self._total + self._recent.weight

    @property
    def highest(self) -> int:
        return max(self._highest, self._recent.highest)

    def quantiles(self, *shares: float) -> list[float]:
        """In ns; 0 without any value in the window."""
        window = LogHistogram(_BITS)
        for part in (self._before, self._recent):
            window.merge(part)
        return [window.percentile(share) for share in shares]

    def summary(self) -> Durations:
        mean = self.total / self.count if self.count else 0.0
        parts = (mean, *self.quantiles(0.5, 0.99), self.highest)
        return Durations(self.count, *(part / MILLISECOND for part in parts))
