"""Counts by bucket, against a search for each value."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from isochrone.observe.bucket_counts import BucketCounts
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS

_durations = st.one_of(
    st.integers(-(10**12), 10**15),
    st.sampled_from(BUCKET_BOUNDS_NS),
    st.sampled_from([bound + 1 for bound in BUCKET_BOUNDS_NS]),
)


@given(st.lists(_durations, max_size=60))
def test_every_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed(durations: list[int]) -> None:
    counted = BucketCounts(BUCKET_BOUNDS_NS)
    expected = [0] * (len(BUCKET_BOUNDS_NS) + 1)
    for duration in durations:
        counted.add(duration)
        expected[bisect_left(BUCKET_BOUNDS_NS, max(0, duration))] += 1
    assert counted.counts() == expected
    assert counted.sum_ns == sum(max(0, duration) for duration in durations)
