"""Measured round trips: robust against noise, and slow to change."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.placement.distances import INTERVAL, INTERVALS, Distances, RoundTrip


def feed(trip: RoundTrip, start: int, intervals: int, *samples: float) -> None:
    """The samples in each of some intervals."""
    for interval in range(start, start + intervals):
        for number, seconds in enumerate(samples):
            trip.add((interval + number / len(samples)) * INTERVAL, seconds)


def test_the_first_sample_counts_until_there_is_more() -> None:
    trip = RoundTrip()
    assert trip.value is None
    trip.add(0.0, 0.004)
    assert trip.value == 0.004
    feed(trip, 0, 2, 0.001, 0.009)
    assert trip.value == 0.001


def test_samples_that_waited_do_not_count() -> None:
    trip = RoundTrip()
    feed(trip, 0, 10, 0.05, 0.001, 0.2)
    assert trip.value == 0.001


def test_a_single_interval_in_which_all_waited_changes_nothing() -> None:
    trip = RoundTrip()
    feed(trip, 0, 5, 0.001)
    feed(trip, 5, 1, 0.08, 0.09)
    feed(trip, 6, 5, 0.001)
    assert trip.value == 0.001


def test_a_jump_of_a_clock_changes_nothing() -> None:
    trip = RoundTrip()
    feed(trip, 0, 5, 0.001)
    for nonsense in (0.0, -3.0, math.nan, math.inf):
        trip.add(50.0, nonsense)
    trip.add(math.nan, 0.5)
    trip.add(-1e9, 0.002)
    feed(trip, 5, 1, 1e-9)
    feed(trip, 6, 5, 0.001)
    assert trip.value == 0.001


def test_a_new_way_is_published_once_most_intervals_have_it() -> None:
    trip = RoundTrip()
    feed(trip, 0, 10, 0.001)
    feed(trip, 10, INTERVALS // 2, 0.005)
    assert trip.value == 0.001
    feed(trip, 10 + INTERVALS // 2, INTERVALS, 0.005)
    assert trip.value == 0.005


def test_small_differences_are_not_published() -> None:
    trip = RoundTrip()
    feed(trip, 0, 4, 0.010)
    feed(trip, 4, 30, 0.0115)
    assert trip.value == 0.010
    feed(trip, 34, 30, 0.0125)
    assert trip.value == 0.0125


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(1e-6, 1.0)), min_size=1, max_size=60))
def test_the_value_is_one_of_the_samples_or_between_them(samples: list[tuple[float, float]]) -> None:
    trip = RoundTrip()
    for now, seconds in samples:
        trip.add(now, seconds)
        assert trip.value is not None
    times = [seconds for _, seconds in samples]
    assert trip.value is not None
    assert min(times) <= trip.value <= max(times)


def test_a_worker_is_as_far_as_from_the_gateway_in_the_middle() -> None:
    distances = Distances()
    for gateway, seconds in (("gw-1", 0.001), ("gw-2", 0.002), ("gw-3", 0.5)):
        distances.add(gateway, "w1", 0.0, seconds)
    assert distances.to("w1", 1.0) == 0.002
    assert distances.to("w2", 1.0) is None


def test_old_measurements_and_gone_processes_are_forgotten() -> None:
    distances = Distances()
    distances.add("gw-1", "w1", 0.0, 0.001)
    distances.add("gw-2", "w1", 500.0, 0.004)
    distances.add("gw-1", "w2", 0.0, 0.002)
    assert distances.to("w1", 500.0) == 0.004
    assert distances.by_worker(500.0) == {"w1": 0.004}
    distances.forget_others({"gw-1"}, 500.0)
    assert distances.by_worker(500.0) == {}
    distances.add("gw-1", "w1", 501.0, 0.001)
    distances.forget_others({"gw-1", "w1"}, 501.0)
    assert distances.by_worker(501.0) == {"w1": 0.001}
