"""The link to another server, from what has crossed it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import MILLISECOND, SECOND
from isochrone.models.divisions import Link
from isochrone.worker.remote.link import LARGE_BYTES, WINDOW_NS, Crossing, LinkEstimator

KNOWN = Link(0.01, 1e6, 0.002)


def crossing(at: int, size: int, link_ns: float, there_ns: int | None = 5 * MILLISECOND) -> Crossing:
    return Crossing(at, size, round(link_ns) + (there_ns or 0), there_ns)


def test_what_was_known_counts_until_something_crosses() -> None:
    assert LinkEstimator(KNOWN).link(SECOND) == KNOWN


@given(st.floats(1e-4, 0.5), st.floats(1e4, 1e9), st.integers(0, 1000), st.lists(st.integers(LARGE_BYTES, 1 << 20)))
def test_delays_that_only_add_do_not_hide_the_link(round_trip: float, rate: float, seed: int, sizes: list[int]) -> None:
    delays = random.Random(seed)
    estimator = LinkEstimator(KNOWN)
    for number in range(8):
        # Every other one is delayed, by up to ten times.
        extra = 1 + (number % 2) * 9 * delays.random()
        estimator.add(crossing(SECOND + number, 400, round_trip * 1e9 * extra))
        for size in sizes:
            estimator.add(crossing(SECOND + number, size, (round_trip + size / rate) * 1e9 * extra))
    found = estimator.link(SECOND + 8)
    assert found.round_trip == pytest.approx(round_trip, rel=1e-3)
    if sizes:
        # Least times are rounded to ns, of which a round trip may be many.
        assert found.bytes_per_second == pytest.approx(rate, rel=0.05)


def test_old_crossings_do_not_count_and_the_last_bandwidth_stays() -> None:
    estimator = LinkEstimator(KNOWN)
    estimator.add(crossing(0, 400, MILLISECOND))
    estimator.add(crossing(0, 100_000, 11 * MILLISECOND))
    assert estimator.link(1).bytes_per_second == pytest.approx(1e7)
    later = WINDOW_NS + SECOND
    estimator.add(crossing(later, 400, 50 * MILLISECOND))
    found = estimator.link(later)
    assert found.round_trip == pytest.approx(0.05)
    assert found.bytes_per_second == pytest.approx(1e7)


def test_a_link_too_fast_to_be_measured_is_infinite() -> None:
    estimator = LinkEstimator(KNOWN)
    estimator.add(crossing(0, 400, MILLISECOND))
    estimator.add(crossing(0, 100_000, MILLISECOND))
    assert estimator.link(1).bytes_per_second == math.inf


def test_jitter_is_the_spread_of_small_crossings() -> None:
    estimator = LinkEstimator(KNOWN)
    for number, milliseconds in enumerate((10, 11, 12, 13, 14)):
        estimator.add(crossing(number, 400, milliseconds * MILLISECOND))
    assert estimator.link(9).jitter == pytest.approx(1.4826e-3, rel=1e-3)


def test_a_server_that_does_not_say_its_time_tells_nothing_of_the_link() -> None:
    estimator = LinkEstimator(KNOWN)
    estimator.add(crossing(0, 400, SECOND, None))
    assert estimator.link(1) == KNOWN
