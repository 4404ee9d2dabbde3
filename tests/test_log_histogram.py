"""Percentiles from buckets, compared with those of the values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.log_histogram import LogHistogram

VALUES = st.lists(st.integers(0, 10**12), min_size=1, max_size=200)


def filled(values: list[int]) -> LogHistogram:
    histogram = LogHistogram(9)
    for value in values:
        histogram.add(value)
    return histogram


@given(VALUES, st.floats(0.01, 1.0))
def test_percentiles_are_within_the_width_of_a_bucket(values: list[int], share: float) -> None:
    ordered = sorted(values)
    wanted = share * len(values)
    index = max(0, min(len(values) - 1, -int(-wanted // 1) - 1))
    exact = ordered[index]
    found = filled(values).percentile(share)
    assert exact * (1 - 1 / 512) - 1 <= found <= exact * (1 + 1 / 512) + 1


@given(VALUES, VALUES)
def test_merging_is_the_same_as_counting_together(one: list[int], other: list[int]) -> None:
    together, merged = filled(one + other), filled(one)
    merged.merge(filled(other))
    assert merged.counts == together.counts
    assert (merged.total, merged.highest, merged.mean) == (together.total, together.highest, together.mean)


def test_memory_is_bounded_by_the_range_of_values_not_by_their_number() -> None:
    histogram = filled([value * 977 for value in range(50_000)])
    assert histogram.total == 50_000
    assert len(histogram.counts) < 10_000


def test_without_values_everything_is_zero() -> None:
    empty = LogHistogram(9)
    assert empty.percentile(0.99) == 0.0
    assert empty.mean == 0.0


def test_the_highest_percentile_is_the_highest_value() -> None:
    assert filled([5, 123_456_789]).percentile(1.0) == pytest.approx(123_456_789, rel=1 / 512)
