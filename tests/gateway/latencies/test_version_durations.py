"""Durations of versions: buckets, percentiles, and a bounded number of versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import SECOND
from isochrone.gateway.latencies.durations import (
    BOUNDS_NS,
    COARSE_BOUNDS_NS,
    OWN_BOUNDS_NS,
    Durations,
    bucket_of,
)
from isochrone.gateway.latencies.version_durations import ANSWERED, FAILED, ModelDurations, VersionDurations

DURATIONS = st.lists(st.one_of(st.integers(0, 30 * SECOND), st.sampled_from(BOUNDS_NS)), max_size=60)


def histogram(values: list[int]) -> Durations:
    made = Durations()
    for value in values:
        made.add(bucket_of(value), value)
    return made


def test_bounds() -> None:
    assert BOUNDS_NS[0] == 50_000
    assert OWN_BOUNDS_NS[0] == 5_000
    for bounds in (BOUNDS_NS, OWN_BOUNDS_NS, COARSE_BOUNDS_NS):
        assert list(bounds) == sorted(set(bounds))
    assert set(COARSE_BOUNDS_NS) <= set(BOUNDS_NS)
    assert COARSE_BOUNDS_NS[:4] == (50_000, 100_000, 200_000, 500_000)
    assert COARSE_BOUNDS_NS[-1] == BOUNDS_NS[-1] == 10 * SECOND


@given(DURATIONS, st.sampled_from([BOUNDS_NS, COARSE_BOUNDS_NS]))
def test_cumulative_counts_are_exact(values: list[int], shown: tuple[int, ...]) -> None:
    made = histogram(values)
    *buckets, last = made.cumulative(shown)
    assert last[0] == "+Inf"
    assert last[1] == len(values)
    assert [float(bound) for bound, _ in buckets] == [bound / 1e9 for bound in shown]
    for bound, (_, count) in zip(shown, buckets, strict=True):
        assert count == sum(value <= bound for value in values)
    assert (made.total, made.sum_ns) == (len(values), sum(values))


@given(st.lists(st.tuples(st.integers(0, 30 * SECOND), st.integers(-SECOND, 3 * SECOND)), max_size=60))
def test_new_values_are_folded_in(pairs: list[tuple[int, int]]) -> None:
    version = VersionDurations("1")
    for whole, own in pairs:
        version.new_durations.add(whole)
        version.new_shares.add(own)
    version.fold()
    version.fold()
    values, shares = [whole for whole, _ in pairs], [max(0, own) for _, own in pairs]
    assert version.of(ANSWERED).counts == histogram(values).counts
    assert version.of(ANSWERED).sum_ns == sum(values)
    assert version.own.sum_ns == sum(shares)
    for bound, (_, count) in zip(OWN_BOUNDS_NS, version.own.cumulative(OWN_BOUNDS_NS, OWN_BOUNDS_NS), strict=False):
        assert count == sum(share <= bound for share in shares)


@given(DURATIONS, DURATIONS)
def test_merging(ones: list[int], others: list[int]) -> None:
    made = histogram(ones)
    made.merge(histogram(others))
    assert made.counts == histogram(ones + others).counts
    assert made.sum_ns == sum(ones + others)


@given(DURATIONS.filter(bool), st.floats(0.01, 1))
def test_percentiles_are_within_their_bucket(values: list[int], share: float) -> None:
    """The bucket of the percentile is that of the exact one: the least value that ``share`` of all do not exceed."""
    found = histogram(values).percentile(share)
    ordered = sorted(values)
    exact = next(value for rank, value in enumerate(ordered, 1) if rank >= share * len(ordered))
    bucket = bucket_of(exact)
    low = BOUNDS_NS[bucket - 1] if bucket else 0
    high = BOUNDS_NS[min(bucket, len(BOUNDS_NS) - 1)]
    assert low <= found <= high


def test_no_values() -> None:
    assert Durations().percentile(0.99) == 0


def test_versions_are_bounded_and_those_that_are_served_stay() -> None:
    durations = ModelDurations()
    first = durations.of("1", {"1"})
    first.add(ANSWERED, 3, 100_000)
    for number in range(2, 300):
        durations.of(str(number), {"1", str(number)}).add(FAILED, 0, 1)
    assert len(durations.versions()) <= 64
    assert durations.of("1", {"1"}) is first
    shown = first.of_outcome[ANSWERED]
    assert shown is not None
    assert (shown.total, shown.sum_ns) == (1, 100_000)


def test_more_served_versions_than_are_told_apart() -> None:
    durations = ModelDurations()
    served = {str(number) for number in range(100)}
    records = [durations.of(version, served) for version in sorted(served)]
    assert len(durations.versions()) == 64
    assert records[-1] is durations.other


@pytest.mark.parametrize("version", ["", "unserved"])
def test_no_version(version: str) -> None:
    durations = ModelDurations()
    assert durations.of("", ()) is durations.other
    assert durations.of(version, ()).version == version
