"""A running quantile of latencies: constant time per value, fixed memory, old values lose their weight.

A histogram with eight buckets per octave (at most 12.5 % wide), and a cursor at the bucket of the quantile, which moves
a step or two per value. Counts are halved regularly, so that the last few thousand values determine the result.
"""

from __future__ import annotations

from isochrone.log_buckets import bucket_bounds, bucket_of

#: Buckets per octave are 2 to this power.
_BITS = 3
#: Latencies from 2**41 ns (37 minutes) on share one bucket.
_LONGEST = (1 << 41) - 1
_BUCKETS = bucket_of(_LONGEST, _BITS) + 1
#: Counts are halved when there are this many.
_HALVE_AT = 4096


class LatencyQuantile:
    """One quantile of one stream of latencies in ns."""

    __slots__ = ("_below", "_counts", "_cursor", "_total", "quantile")

    def __init__(self, quantile: float) -> None:
        self.quantile = quantile
        self._counts = [0] * _BUCKETS
        self._total = 0
        #: The bucket of the quantile, and the number of values in the buckets below.
        self._cursor = 0
        self._below = 0

    @property
    def count(self) -> int:
        """The number of values, with halved weights."""
        return self._total

    def add(self, value: int) -> None:
        """Add a latency."""
        counts = self._counts
        bucket = bucket_of(value if value < _LONGEST else _LONGEST, _BITS)
        counts[bucket] += 1
        self._total += 1
        if bucket < self._cursor:
            self._below += 1
        if self._total >= _HALVE_AT:
            self._halve()
        self._settle()

    def value(self) -> int:
        """The upper edge of the quantile's bucket: at most 12.5 % above the true value, never below. 0: no values."""
        return bucket_bounds(self._cursor, _BITS)[1] - 1 if self._total else 0

    def _settle(self) -> None:
        counts, cursor, below = self._counts, self._cursor, self._below
        rank = self.quantile * self._total
        while below >= rank and cursor > 0:
            cursor -= 1
            below -= counts[cursor]
        while below + counts[cursor] < rank:
            below += counts[cursor]
            cursor += 1
        self._cursor, self._below = cursor, below

    def _halve(self) -> None:
        self._counts = [count >> 1 for count in self._counts]
        self._total = sum(self._counts)
        self._below = sum(self._counts[: self._cursor])
