"""Buckets that grow with the value: each octave is divided into equally many, so that counts have a relative precision.

With ``bits`` an octave has 2**bits buckets, and a bucket is at most 1/2**bits of its lowest value wide; values below
2**(bits + 1) have a bucket each. Callers that count hundreds of thousands of values a second write ``bucket_of`` out.
"""

from __future__ import annotations


def bucket_of(value: int, bits: int) -> int:
    """The bucket of a value; the lowest one for what is negative."""
    shift = value.bit_length() - bits - 1
    if shift > 0:
        return (shift << bits) + (value >> shift)
    return value if value > 0 else 0


def bucket_bounds(bucket: int, bits: int) -> tuple[int, int]:
    """The lowest value of a bucket, and the lowest value of the next."""
    shift = (bucket >> bits) - 1
    if shift <= 0:
        return bucket, bucket + 1
    low = (bucket - (shift << bits)) << shift
    return low, low + (1 << shift)
