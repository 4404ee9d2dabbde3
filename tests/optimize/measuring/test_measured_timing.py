"""Times of repeated runs: the interval holds the median, and runs end when it is narrow."""

from __future__ import annotations

import random
import statistics
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import SECOND
from isochrone.optimize.measuring.timing import (
    LEAST_RUNS,
    LEAST_TURN_RUNS,
    Timing,
    measure,
    measure_in_turns,
    timing_of,
)


class Clock:
    """Advances by the next duration in every run."""

    def __init__(self, durations: list[int]) -> None:
        self.now = 0
        self.runs = 0
        self._durations = chain(durations, repeat(durations[-1]))

    def __call__(self) -> int:
        return self.now

    def run(self) -> None:
        self.runs += 1
        self.now += next(self._durations)


@given(st.lists(st.floats(min_value=1, max_value=1e12), min_size=1, max_size=300))
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    found = timing_of(samples)
    assert found.median == pytest.approx(statistics.median(samples))
    assert min(samples) <= found.low <= found.median <= found.high <= max(samples)
    assert found.median <= found.p99 <= max(samples)
    assert found.runs == len(samples)


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    source = random.Random(5)
    held = 0
    for _ in range(1000):
        found = timing_of([source.lognormvariate(0, 0.5) for _ in range(50)])
        held += found.low <= 1.0 <= found.high
    assert held >= 930


def test_equal_runs_end_after_the_fewest() -> None:
    clock = Clock([1_000_000])
    found = measure(clock.run, seconds=60, clock=clock)
    assert found == Timing(1e6, 1e6, 1e6, 1e6, LEAST_RUNS)
    assert clock.runs == LEAST_RUNS + 2


def test_runs_that_differ_are_repeated_until_the_median_is_known() -> None:
    source = random.Random(7)
    clock = Clock([round(1e6 * source.uniform(0.8, 1.2)) for _ in range(100_000)])
    found = measure(clock.run, seconds=600, precision=0.02, clock=clock)
    assert found.spread <= 0.02
    assert LEAST_RUNS < found.runs < 10_000
    assert found.median == pytest.approx(1e6, rel=0.05)


def test_time_bounds_the_runs() -> None:
    source = random.Random(9)
    clock = Clock([round(1e8 * source.uniform(0.1, 2)) for _ in range(1000)])
    measure(clock.run, seconds=2, precision=0.0001, warm_runs=0, clock=clock)
    assert 2 * SECOND <= clock.now <= 2.2 * SECOND


def test_one_run_that_outlasts_the_time_is_the_figure() -> None:
    clock = Clock([10 * SECOND])
    assert measure(clock.run, seconds=1, warm_runs=0, clock=clock).runs == 1


def test_slow_first_runs_do_not_count() -> None:
    clock = Clock([SECOND, SECOND, 1_000_000])
    assert measure(clock.run, seconds=60, clock=clock).median == 1e6


class Phases:
    """A machine that is slower by a factor at some times than at others, and two models on it."""

    def __init__(self, seed: int) -> None:
        self.now = 0
        self._source = random.Random(seed)
        self._slower, self._until = 1.0, 0

    def __call__(self) -> int:
        return self.now

    def run(self, nanoseconds: float) -> None:
        if self.now >= self._until:
            self._slower, self._until = self._source.choice((1.0, 1.5)), self.now + 300_000_000
        self.now += round(nanoseconds * self._slower * self._source.uniform(0.97, 1.03))


@pytest.mark.parametrize("seed", range(5))
def test_the_ratio_of_two_models_in_turns_is_not_that_of_the_machines_phases(seed: int) -> None:
    machine = Phases(seed)
    timing, ratio = measure_in_turns(
        lambda: machine.run(1e6), lambda: machine.run(2e6), seconds=3, precision=0.0001, clock=machine
    )
    assert ratio == pytest.approx(2, rel=0.02)
    assert 0.97e6 <= timing.median <= 1.55e6


def test_turns_end_when_both_are_known_or_the_time_is_over() -> None:
    clock = Clock([1_000_000])
    timing, ratio = measure_in_turns(clock.run, clock.run, seconds=60, clock=clock)
    assert (timing.median, ratio) == (1e6, 1.0)
    assert clock.runs == 2 * LEAST_RUNS * LEAST_TURN_RUNS
    slow = Clock([10 * SECOND])
    measure_in_turns(slow.run, slow.run, seconds=1, clock=slow)
    assert slow.runs == 2 * LEAST_TURN_RUNS
