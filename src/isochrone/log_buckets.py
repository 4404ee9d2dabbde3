"""Logarithmic histogram buckets with a fixed relative precision.

Each octave has 2**bits buckets, and the width of a bucket is at most 1/2**bits of its lowest value; each value below
2**(bits + 1) has its own bucket. Callers that count hundreds of thousands of values per second inline ``bucket_of``.
"""

from __future__ import annotations


def bucket_of(value: int, bits: int) -> int:
    """The bucket of a value; the lowest bucket for negative values."""
    shift = value.bit_length() - bits - 1
    if shift > 0:
        return (shift << bits) + (value >> shift)
    return value if value > 0 else 0


def bucket_bounds(bucket: int, bits: int) -> tuple[int, int]:
    """The lowest value of a bucket, and of the next bucket."""
    shift = (bucket >> bits) - 1
    if shift <= 0:
        return bucket, bucket + 1
    low = (bucket - (shift << bits)) << shift
    return low, low + (1 << shift)
