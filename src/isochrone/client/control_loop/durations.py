"""Durations as counts in logarithmic buckets: quantiles are exact to 3 %, and memory does not grow with ticks."""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.clock import MILLISECOND
from isochrone.log_buckets import bucket_bounds, bucket_of

_BITS = 5


@dataclass(frozen=True, slots=True)
class Durations:
    """What was measured of one duration, in ms."""

    count: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float


class DurationCounts:
    __slots__ = ("_buckets", "count", "highest", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.highest = 0

    def add(self, nanoseconds: int) -> None:
        bucket = bucket_of(nanoseconds, _BITS)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        self.total += nanoseconds
        if nanoseconds > self.highest:
            self.highest = nanoseconds

    def quantile(self, share: float) -> int:
        """In ns, at most the highest; 0 without any."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(self.highest, bucket_bounds(bucket, _BITS)[1])
        return 0

    def summary(self) -> Durations:
        mean = self.total / self.count if self.count else 0.0
        parts = (mean, self.quantile(0.5), self.quantile(0.99), self.highest)
        return Durations(self.count, *(part / MILLISECOND for part in parts))
