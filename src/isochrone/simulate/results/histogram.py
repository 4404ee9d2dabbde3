"""A log-linear histogram of latencies: bounded memory for any number of samples, percentiles within 0.2 %.

The ten leading bits of a value name its bucket.
"""

from __future__ import annotations

from isochrone.log_buckets import bucket_bounds

_BITS = 9


class Histogram:
    """A histogram of non-negative integers (ns)."""

    __slots__ = ("counts", "highest", "total", "weight")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0
        self.highest = 0
        #: Sum of all values, for the mean.
        self.weight = 0

    def add(self, value: int) -> None:
        # ``bucket_of``, inlined.
        shift = value.bit_length() - _BITS - 1
        bucket = (shift << _BITS) + (value >> shift) if shift > 0 else value
        counts = self.counts
        counts[bucket] = counts.get(bucket, 0) + 1
        self.total += 1
        self.weight += value
        if value > self.highest:
            self.highest = value

    def merge(self, other: Histogram) -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total += other.total
        self.weight += other.weight
        self.highest = max(self.highest, other.highest)

    @property
    def mean(self) -> float:
        return self.weight / self.total if self.total else 0.0

    def percentile(self, share: float) -> float:
        """The value that ``share`` of all do not exceed, interpolated linearly within its bucket; 0 without values."""
        wanted = share * self.total
        passed = 0
        for bucket in sorted(self.counts):
            count = self.counts[bucket]
            if passed + count >= wanted:
                low, end = bucket_bounds(bucket, _BITS)
                return min(low + (end - low) * (wanted - passed) / count, float(self.highest))
            passed += count
        return float(self.highest)
