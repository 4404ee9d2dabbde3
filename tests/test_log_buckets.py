"""Buckets that grow with the value: without gaps, without overlap, as narrow as promised."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.log_buckets import bucket_bounds, bucket_of

BITS = st.integers(0, 12)


@given(st.integers(0, 1 << 62), BITS)
def test_a_value_lies_in_its_bucket(value: int, bits: int) -> None:
    low, end = bucket_bounds(bucket_of(value, bits), bits)
    assert low <= value < end
    assert (end - low) << bits <= max(low, 1 << bits)


@given(st.integers(0, 5000), BITS)
def test_buckets_follow_each_other_without_a_gap(bucket: int, bits: int) -> None:
    low, end = bucket_bounds(bucket, bits)
    assert (bucket_of(low, bits), bucket_of(end, bits)) == (bucket, bucket + 1)


def test_negative_values_are_in_the_first_bucket() -> None:
    assert bucket_of(-5, 3) == 0
