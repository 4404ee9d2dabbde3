"""A histogram of durations in fixed buckets, for the metrics page. Pure.

A caller finds the bucket of a value first, by ``bucket_of``: several histograms with the same bounds then take it
without a second search.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from isochrone.observe.exemplars import Exemplar
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS

#: Of whole requests, in ns: those of the workers' pages, from 50 µs.
BOUNDS_NS: Final[tuple[int, ...]] = BUCKET_BOUNDS_NS
#: Of the gateway's own share, which is far less: 5 µs to 1 s, three per decade.
OWN_BOUNDS_NS: Final[tuple[int, ...]] = (
    5_000,
    *(step * 10**exponent for exponent in range(3, 8) for step in (10, 20, 50)),
    1_000_000_000,
)
#: Every second or third of ``BOUNDS_NS``: where there are many series, half of the buckets are enough.
COARSE_BOUNDS_NS: Final[tuple[int, ...]] = tuple(
    bound for bound in BOUNDS_NS if str(bound).rstrip("0") in ("1", "2", "5")
)


def bucket_of(duration_ns: int) -> int:
    """The bucket of a whole request's duration: the first whose bound it does not exceed."""
    return bisect_left(BOUNDS_NS, duration_ns)


class Durations:
    """The durations of some requests. ``counts`` are not cumulative; the last bucket has no upper bound."""

    __slots__ = ("counts", "exemplars", "sum_ns")

    def __init__(self, bounds: tuple[int, ...] = BOUNDS_NS) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.sum_ns = 0
        #: By bucket: the last value of a sampled trace. Mostly empty.
        self.exemplars: dict[int, Exemplar] = {}

    def add(self, bucket: int, duration_ns: int) -> None:
        self.counts[bucket] += 1
        self.sum_ns += duration_ns

    def add_all(self, counts: list[int], sum_ns: int) -> None:
        """Add many values: their counts by bucket."""
        for bucket, count in enumerate(counts):
            self.counts[bucket] += count
        self.sum_ns += sum_ns

    def merge(self, other: Durations) -> None:
        """Add the values of another histogram, which has the same bounds."""
        self.add_all(other.counts, other.sum_ns)

    @property
    def total(self) -> int:
        return sum(self.counts)

    def cumulative(
        self, shown: tuple[int, ...] = BOUNDS_NS, bounds: tuple[int, ...] = BOUNDS_NS
    ) -> list[tuple[str, float]]:
        """Upper bound in seconds → values up to it, as Prometheus wants them. ``shown``: some of ``bounds``."""
        wanted = frozenset(shown)
        found: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip(bounds, self.counts, strict=False):
            below += count
            if bound in wanted:
                found.append((str(bound / 1e9), float(below)))
        found.append(("+Inf", float(below + self.counts[-1])))
        return found

    def percentile(self, share: float) -> float:
        """The duration in ns that ``share`` of all do not exceed, interpolated in its bucket; 0 without values.

        Of the last bucket, which has no upper bound, its lower one.
        """
        wanted = share * self.total
        passed = 0
        low = 0
        for bound, count in zip(BOUNDS_NS, self.counts, strict=False):
            if count and passed + count >= wanted:
                return low + (bound - low) * max(0.0, wanted - passed) / count
            passed += count
            low = bound
        return float(low) if self.counts[-1] else 0.0
