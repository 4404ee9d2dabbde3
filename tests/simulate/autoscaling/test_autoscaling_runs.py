"""Simulated pools: what is offered is served, refused or late; workers cost from start to end; seeds repeat."""

from __future__ import annotations

import pytest

from isochrone.simulate.autoscaling.comparison import compare, our_settings
from isochrone.simulate.autoscaling.courses import COURSES, Course, flash_crowd
from isochrone.simulate.autoscaling.policies.base import Reading
from isochrone.simulate.autoscaling.policies.isochrone import Isochrone
from isochrone.simulate.autoscaling.pool import Pool, PoolSettings, capacity
from isochrone.simulate.autoscaling.run import run
from isochrone.simulate.autoscaling.turning_points import direction_changes, load_direction_changes

SETTINGS = PoolSettings()
ONE = capacity(SETTINGS, 1.0)


class Scripted:
    """Sizes by second."""

    interval = 10
    window = 10

    def __init__(self, sizes: dict[int, int], first: int) -> None:
        self.sizes, self.size = sizes, first
        self.readings: list[Reading] = []

    def desired(self, reading: Reading) -> int:
        self.readings.append(reading)
        self.size = self.sizes.get(reading.instant, self.size)
        return self.size


def constant(rate: int, seconds: int, leak: float = 0.0) -> Course:
    return Course("constant", [rate] * seconds, [float(rate)] * seconds, leak)


def first_workers(rate: int) -> int:
    return len(Pool(SETTINGS, 0.0, rate).ready)


def test_the_capacity_of_a_worker_is_that_of_its_largest_batch() -> None:
    assert pytest.approx(32 / (0.030 + 32 * 0.0016)) == ONE
    # Twice as slow: only batches of up to 12 take at most 100 ms.
    assert capacity(SETTINGS, 2.0) == pytest.approx(12 / (2 * (0.030 + 12 * 0.0016)))


def test_a_pool_that_is_large_enough_refuses_nothing() -> None:
    outcome = run(constant(1000, 600), Scripted({}, first_workers(1000)), SETTINGS)
    assert (outcome.refused, outcome.late, outcome.offered) == (0, 0, 600_000)
    assert outcome.worker_hours == pytest.approx(5 * 600 / 3600)


def test_what_exceeds_the_capacity_is_refused() -> None:
    policy = Scripted({10: 2}, 5)
    outcome = run(constant(1000, 610), policy, SETTINGS)
    # From the tenth second on, two workers; what may wait within the SLO hardly counts.
    assert outcome.refused == pytest.approx(600 * (1000 - 2 * ONE), rel=0.001)
    assert policy.readings[-1].utilisation == pytest.approx(1)
    assert policy.readings[-1].refused == pytest.approx(1000 - 2 * ONE)
    # Three drain for five seconds.
    assert outcome.worker_hours == pytest.approx((10 * 5 + 600 * 2 + 3 * 5) / 3600)


def test_a_new_worker_serves_after_its_start_up_and_is_paid_for_before() -> None:
    policy = Scripted({10: 6}, 5)
    outcome = run(constant(1000, 310), policy, SETTINGS)
    assert [reading.ready for reading in policy.readings if reading.instant in (120, 130, 140)] == [5, 6, 6]
    assert outcome.worker_hours == pytest.approx((10 * 5 + 300 * 6) / 3600)


def test_standby_workers_serve_at_once_and_are_replaced() -> None:
    policy = Scripted({100: 8}, 5)
    outcome = run(constant(1000, 400), policy, PoolSettings(warm=2))
    by_instant = {reading.instant: reading for reading in policy.readings}
    assert (by_instant[110].ready, by_instant[110].pending, by_instant[110].standby) == (7, 1, 0)
    assert (by_instant[220].ready, by_instant[220].standby) == (8, 2)
    assert outcome.worker_hours == pytest.approx((100 * 7 + 300 * 10) / 3600)


def test_ended_starts_come_before_ended_workers() -> None:
    pool = Pool(SETTINGS, 0.0, 1000.0)
    pool.scale(0, 8)
    pool.scale(10, 6)
    assert (len(pool.ready), len(pool.pending), len(pool.draining)) == (5, 1, 0)
    pool.scale(20, 4)
    assert (len(pool.ready), len(pool.pending), len(pool.draining)) == (4, 0, 1)


def test_a_leak_makes_workers_slower() -> None:
    policy = Scripted({}, 5)
    run(constant(1000, 1000, leak=1000.0), policy, SETTINGS)
    assert policy.readings[0].capacities[0] == pytest.approx(ONE, rel=0.05)
    assert policy.readings[-1].capacities[0] < ONE / 2


def test_in_flight_follows_the_load() -> None:
    pool = Pool(SETTINGS, 0.0, 1000.0)
    full = pool.total
    shares = [pool.in_flight(full * load, 0.0) / len(pool.ready) for load in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(pool.full_in_flight())
    assert pool.in_flight(0.0, 7.0) == 7


def test_turning_points() -> None:
    assert direction_changes([1, 2, 2, 3]) == 0
    assert direction_changes([1, 2, 2, 1, 1, 2]) == 2
    assert direction_changes([]) == 0
    assert load_direction_changes([100, 100, 109, 100, 109], 1, 10) == 0
    assert load_direction_changes([100, 150, 145, 155, 100, 105, 150], 1, 20) == 2
    assert load_direction_changes([100, 50, 100, 50], 1, 20) == 2
    assert load_direction_changes([], 1, 20) == 0


@pytest.mark.parametrize("name", [name for name in COURSES if name != "daily_pattern"])
def test_courses_repeat_by_seed(name: str) -> None:
    first, again, other = COURSES[name](1), COURSES[name](1), COURSES[name](2)
    assert first == again
    assert first.arrivals != other.arrivals
    assert min(first.arrivals) > 0


def test_a_run_repeats_and_keeps_its_books() -> None:
    course = flash_crowd(3)
    short = Course("short", course.arrivals[:9000], course.rates[:9000])
    first, again = (run(short, Isochrone(our_settings(SETTINGS)), SETTINGS) for _ in range(2))
    assert first == again
    assert first.offered == sum(short.arrivals)
    assert 0 < first.violations < 0.05
    assert min(size for _, size in first.sizes) >= 1
    assert max(size for _, size in first.sizes) <= SETTINGS.max_workers


@pytest.mark.long
def test_ours_has_at_most_half_the_violations_of_the_best_other_in_a_flash_crowd() -> None:
    (comparison,) = compare(["flash_crowd"], range(201, 204), SETTINGS)
    ours, best = comparison.rows[0], comparison.best_other
    assert ours.violations.mean <= best.violations.mean / 2
    assert len(comparison.rows) == 5
