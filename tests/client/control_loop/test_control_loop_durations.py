"""Durations of a long-running loop: quantiles follow the last minutes, counts and sums are of its whole life."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.client.control_loop.durations import DurationCounts
from isochrone.client.control_loop.schedule import TickLimits
from isochrone.client.control_loop.times import WINDOW, LoopTimes
from isochrone.clock import MILLISECOND as MS
from isochrone.clock import SECOND


def acted(times: LoopTimes, at: int, took: int) -> None:
    times.tick("remote", TickLimits(at, at + 2 * MS, at + 17 * MS, at + 20 * MS), at, at, at + took, at + took)


def test_quantiles_leave_what_is_long_past() -> None:
    times = LoopTimes()
    for number in range(1000):
        acted(times, number * SECOND // 50, 15 * MS)
    later = 10 * WINDOW
    for number in range(10):
        acted(times, later + number * WINDOW, 5 * MS)
        times.round_trip(MS)
    figures = times.summary().times["tick"]
    assert figures.p99_ms == pytest.approx(5, rel=0.04)
    assert (figures.count, figures.max_ms) == (1010, 15)
    assert figures.mean_ms == pytest.approx((1000 * 15 + 10 * 5) / 1010)
    assert times.summary().times["round_trip"].count == 10
    assert 'isochrone_control_loop_seconds_count{time="tick"} 1010\n' in times.prometheus()


def test_quantiles_hold_one_to_two_windows() -> None:
    times = LoopTimes()
    acted(times, 0, 15 * MS)
    acted(times, WINDOW + SECOND, 5 * MS)
    assert times.summary().times["tick"].p99_ms == pytest.approx(15, rel=0.04)
    acted(times, 2 * WINDOW + 2 * SECOND, 5 * MS)
    assert times.summary().times["tick"].p99_ms == pytest.approx(5, rel=0.04)


@given(st.lists(st.one_of(st.none(), st.integers(0, 10**12))))
def test_counts_and_sums_are_of_the_whole_life(steps: list[int | None]) -> None:
    """None: a turn of the window."""
    counts = DurationCounts()
    for step in steps:
        if step is None:
            counts.turn()
        else:
            counts.add(step)
    values = [step for step in steps if step is not None]
    assert (counts.count, counts.total, counts.highest) == (len(values), sum(values), max(values, default=0))
    turns = [place for place, step in enumerate(steps) if step is None]
    begin = turns[-2] + 1 if len(turns) > 1 else 0
    window = sorted(step for step in steps[begin:] if step is not None)
    (highest,) = counts.quantiles(1.0)
    assert highest == pytest.approx(window[-1] if window else 0, rel=1 / 32, abs=1)
