"""A histogram of durations in logarithmic buckets: bounded memory for any number of values, percentiles to 2**-bits.

The leading ``bits + 1`` bits of a value name its bucket (``log_buckets``).
"""

from __future__ import annotations

from isochrone.log_buckets import bucket_bounds


class LogHistogram:
    """A histogram of non-negative integers (ns)."""

    __slots__ = ("_bits", "counts", "highest", "total", "weight")

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self.counts: dict[int, int] = {}
        self.total = 0
        self.highest = 0
        #: Sum of all values, for the mean.
        self.weight = 0

    def add(self, value: int) -> None:
        # ``bucket_of``, inlined.
        bits = self._bits
        shift = value.bit_length() - bits - 1
        bucket = (shift << bits) + (value >> shift) if shift > 0 else value
        counts = self.counts
        counts[bucket] = counts.get(bucket, 0) + 1
        self.total += 1
        self.weight += value
        if value > self.highest:
            self.highest = value

    def merge(self, other: LogHistogram) -> None:
        """Adds the values of another histogram, which has as many ``bits``."""
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
                low, end = bucket_bounds(bucket, self._bits)
                return min(low + (end - low) * (wanted - passed) / count, float(self.highest))
            passed += count
        return float(self.highest)
