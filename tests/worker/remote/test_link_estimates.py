"""The link to another server, from what has crossed it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import MILLISECOND, SECOND
from isochrone.models.divisions import Link
from isochrone.worker.remote.link import LARGE_BYTES, WINDOW_NS, Crossing, LinkEstimator, UnderWay

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
        # Every fourth one is delayed, by up to ten times.
        extra = 1 + (number % 4 == 3) * 9 * delays.random()
        estimator.add(crossing(SECOND + number, 400, round_trip * 1e9 * extra))
        for size in sizes:
            estimator.add(crossing(SECOND + number, size, (round_trip + size / rate) * 1e9 * extra))
    found = estimator.link(SECOND + 8)
    assert found.round_trip == pytest.approx(round_trip, rel=1e-3)
    for size in sizes:
        # Either within what can be told, or exact.
        unclear = 2 * max(0.05 * round_trip, 0.001) * max(1, size / min(sizes))
        assert found.payload_seconds(size) == pytest.approx(size / rate, abs=unclear, rel=0.05)


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


def test_a_crossing_within_the_noise_only_proves_a_least_bandwidth() -> None:
    estimator = LinkEstimator(KNOWN)
    estimator.add(crossing(0, 400, 10 * MILLISECOND))
    estimator.add(crossing(0, 20_000, 10 * MILLISECOND))
    # 5 % of the round trip, and the jitter of the plan.
    assert estimator.link(1).bytes_per_second == pytest.approx(20_000 / 0.002)
    fast = LinkEstimator(Link(0.01, 1e9, 0.002))
    fast.add(crossing(0, 400, 10 * MILLISECOND))
    fast.add(crossing(0, 20_000, 10 * MILLISECOND))
    assert fast.link(1).bytes_per_second == 1e9


@given(st.floats(1e-4, 0.5), st.floats(1e4, 1e9), st.lists(st.floats(0.5, 1.5), min_size=1, max_size=30))
def test_live_figures_are_never_infinite(round_trip: float, rate: float, noise: list[float]) -> None:
    estimator = LinkEstimator(Link(round_trip, rate))
    for number, factor in enumerate(noise):
        estimator.add(crossing(number * SECOND // 8, 400, round_trip * 1e9 * (2 - factor)))
        estimator.add(crossing(number * SECOND // 8, 37_000, (round_trip + 37_000 / rate) * 1e9 * factor))
        assert math.isfinite(estimator.link(number * SECOND // 8).bytes_per_second)


def test_a_large_crossing_keeps_the_round_trip_of_its_own_time() -> None:
    estimator = LinkEstimator(Link(0.002, 37.5e6))
    for number in range(8):
        estimator.add(crossing(number * SECOND // 8, 400, 2 * MILLISECOND))
        estimator.add(crossing(number * SECOND // 8, 37_500, 3 * MILLISECOND))
    for number in range(8, 60):
        estimator.add(crossing(number * SECOND // 8, 400, 62 * MILLISECOND))
        assert estimator.link(number * SECOND // 8).bytes_per_second == pytest.approx(37.5e6)


def test_a_longer_round_trip_is_seen_with_the_third_crossing() -> None:
    estimator = LinkEstimator(KNOWN)
    found = []
    for number in range(10):
        estimator.add(crossing(number * SECOND // 2, 400, (60 if number > 5 else 2) * MILLISECOND))
        found.append(round(estimator.link(number * SECOND // 2).round_trip, 6))
    assert found == [0.002] * 9 + [0.06]


def test_what_is_overdue_shows_a_slower_link_before_it_ends() -> None:
    estimator = LinkEstimator(Link(0.002, 1e7))
    estimator.add(crossing(0, 400, 2 * MILLISECOND))
    estimator.add(crossing(0, 100_000, 12 * MILLISECOND))
    assert estimator.link(SECOND // 100, [UnderWay(1, 100_000, 0)]).bytes_per_second == pytest.approx(1e7)
    late = estimator.link(SECOND, [UnderWay(1, 100_000, 0)])
    assert late.bytes_per_second == pytest.approx(100_000 / 0.998, rel=1e-3)
    # It stays so when the request is given up: the crossing before it tells nothing more.
    assert estimator.link(SECOND + 1).bytes_per_second == late.bytes_per_second
    assert estimator.link(SECOND + 2, [UnderWay(SECOND // 2, 400, 0)]).round_trip == pytest.approx(0.5, rel=1e-3)


def test_time_in_the_core_is_not_overdue_on_the_link() -> None:
    estimator = LinkEstimator(Link(0.002, 1e7))
    assert estimator.link(SECOND, [UnderWay(0, 100_000, 0.99e9)]) == Link(0.002, 1e7)


def test_time_on_this_machine_is_not_the_links() -> None:
    assert Crossing(SECOND, 400, 9 * MILLISECOND, 2 * MILLISECOND, 4 * MILLISECOND).link_ns == 3 * MILLISECOND


def test_the_curve_of_the_plan_keeps_its_shape() -> None:
    points = ((4096, 0.021), (65_536, 0.06), (1 << 20, 0.09))
    known = Link(0.02, 4e7, 0.0, points)
    estimator = LinkEstimator(known)
    for number in range(4):
        estimator.add(crossing(number, 400, 20 * MILLISECOND))
        estimator.add(crossing(number, 65_536, 60 * MILLISECOND))
    same = estimator.link(9)
    assert [same.seconds(size, 0) for size, _ in points] == pytest.approx([seconds for _, seconds in points])
    slower = LinkEstimator(known)
    slower.add(crossing(0, 400, 20 * MILLISECOND))
    slower.add(crossing(0, 65_536, 100 * MILLISECOND))
    assert slower.link(1).seconds(1 << 20, 0) == pytest.approx(0.02 + 0.14)


def test_jitter_is_the_spread_of_small_crossings() -> None:
    estimator = LinkEstimator(KNOWN)
    for number, milliseconds in enumerate((10, 11, 12, 13, 14)):
        estimator.add(crossing(number, 400, milliseconds * MILLISECOND))
    assert estimator.link(9).jitter == pytest.approx(1e-3 / 0.954, rel=1e-3)


def test_a_link_that_changes_once_has_no_jitter() -> None:
    estimator = LinkEstimator(KNOWN)
    for number in range(8):
        estimator.add(crossing(number, 400, (60 if number > 3 else 2) * MILLISECOND))
    assert estimator.link(9).jitter == 0


def test_a_server_that_does_not_say_its_time_tells_nothing_of_the_link() -> None:
    estimator = LinkEstimator(KNOWN)
    estimator.add(crossing(0, 400, SECOND, None))
    assert estimator.link(1) == KNOWN
