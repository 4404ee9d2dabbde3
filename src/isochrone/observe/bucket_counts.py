"""Counts of durations in fixed buckets, cheap enough for every request: two comparisons and two additions each.

Durations of one kind resemble each other, so the search for a bucket begins at the last one. Compiled, an addition
takes no memory: the numbers are attributes, which native code changes in place. Pure.
"""

from __future__ import annotations

from typing import Final

#: Below and above every duration.
_LEAST: Final = -1
_MOST: Final = (1 << 62) - 1


class _Bucket:
    """Counts what is above ``low`` and at most ``high``."""

    __slots__ = ("count", "high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.count = 0


class BucketCounts:
    """The durations of one kind, in ns. The last bucket has no upper bound."""

    __slots__ = ("_at", "_bounds", "_buckets", "added", "sum_ns")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self._bounds = bounds
        #: Made for the first duration: most of a thousand models have none.
        self._buckets: list[_Bucket] = []
        #: The bucket of the last duration.
        self._at = 0
        #: Durations that were added since the last ``take``.
        self.added = 0
        self.sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Counts a duration; one below zero counts as zero."""
        if not self._buckets:
            self._make()
        self.added += 1
        if duration_ns <= 0:
            self._buckets[0].count += 1
            return
        at = self._at
        bucket = self._buckets[at]
        if duration_ns > bucket.high or duration_ns <= bucket.low:
            while duration_ns > bucket.high:
                at += 1
                bucket = self._buckets[at]
            while duration_ns <= bucket.low:
                at -= 1
                bucket = self._buckets[at]
            self._at = at
        bucket.count += 1
        self.sum_ns += duration_ns

    def counts(self) -> list[int]:
        """By bucket, not cumulative."""
        if not self._buckets:
            return [0] * (len(self._bounds) + 1)
        return [bucket.count for bucket in self._buckets]

    def take(self) -> tuple[list[int], int]:
        """The counts by bucket and the sum; all of them are zero afterwards."""
        taken = self.counts(), self.sum_ns
        self.added = 0
        self.sum_ns = 0
        for bucket in self._buckets:
            bucket.count = 0
        return taken

    def _make(self) -> None:
        limits = zip((_LEAST, *self._bounds), (*self._bounds, _MOST), strict=True)
        self._buckets = [_Bucket(low, high) for low, high in limits]
