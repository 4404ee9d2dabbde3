"""Arrivals: the requested rate and burstiness, in order, in bounded blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.clock import SECOND
from isochrone.simulate.draws import BLOCK, stream
from isochrone.simulate.load.workloads import (
    Diurnal,
    Gamma,
    Minutes,
    Poisson,
    Steps,
    Workload,
    arrivals,
    duration,
)


def times_of(workload: Workload, seconds: float, seed: int = 3) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    found = [time for _, block in arrivals(workload, seconds, 0, stream(seed, "workload")) for time in block]
    times: np.ndarray[tuple[int], np.dtype[np.float64]] = np.array(found) / SECOND
    return times


@given(
    st.one_of(
        st.builds(Poisson, rate=st.floats(0.5, 3000)),
        st.builds(Gamma, rate=st.floats(0.5, 3000), cv=st.floats(0.2, 4)),
        st.builds(Diurnal, rate=st.floats(0.5, 3000), swing=st.floats(0, 1), day_seconds=st.floats(0.1, 20)),
        st.builds(
            Minutes,
            counts=st.lists(st.integers(0, 90_000), min_size=1, max_size=4),
            fill=st.sampled_from(["renewal", "uniform"]),
        ),
        st.builds(
            Steps,
            rate=st.floats(1, 500),
            factors=st.lists(st.floats(0.1, 2), min_size=1, max_size=4),
            step_seconds=st.floats(0.1, 3),
        ),
    ),
    st.floats(0.1, 5),
    st.integers(0, 100),
)
@settings(max_examples=40, deadline=None)
def test_arrivals_are_sorted_inside_the_run_and_in_small_blocks(workload: Workload, seconds: float, seed: int) -> None:
    end = duration(workload, seconds) * SECOND
    last = 0
    for _, block in arrivals(workload, seconds, 0, stream(seed, "workload")):
        assert len(block) <= BLOCK
        assert block == sorted(block)
        if block:
            assert last <= block[0]
            last = block[-1]
    assert last <= end + 1


def test_a_seed_gives_the_same_arrivals_and_another_one_others() -> None:
    assert np.array_equal(times_of(Poisson(rate=100), 5), times_of(Poisson(rate=100), 5))
    assert not np.array_equal(times_of(Poisson(rate=100), 5)[:50], times_of(Poisson(rate=100), 5, seed=4)[:50])


def test_poisson_has_its_rate_and_no_memory() -> None:
    times = times_of(Poisson(rate=1000), 100)
    assert len(times) == pytest.approx(100_000, rel=0.015)
    gaps = np.diff(times)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.02)
    counts = np.histogram(times, 1000, (0, 100))[0]
    # Poisson counts: variance equals mean.
    assert counts.var() / counts.mean() == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("cv", [0.5, 3.0])
def test_gamma_has_its_rate_and_its_burstiness(cv: float) -> None:
    gaps = np.diff(times_of(Gamma(rate=1000, cv=cv), 200))
    assert 1 / gaps.mean() == pytest.approx(1000, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_a_day_is_lowest_at_its_ends_and_highest_at_noon() -> None:
    times = times_of(Diurnal(rate=1000, swing=0.8, day_seconds=100), 100)
    counts = np.histogram(times, 10, (0, 100))[0] / 10
    assert len(times) == pytest.approx(100_000, rel=0.02)
    assert counts[0] == pytest.approx(226, rel=0.1)
    assert counts[4] == pytest.approx(1774, rel=0.05)
    assert counts[5] == pytest.approx(1774, rel=0.05)


def test_minutes_filled_uniformly_hold_exactly_what_they_say() -> None:
    workload = Minutes(counts=[60, 0, 1200], fill="uniform")
    counts = np.histogram(times_of(workload, 240), 4, (0, 240))[0]
    assert counts.tolist() == [60, 0, 1200, 60]


def test_minutes_filled_by_renewal_scatter_around_what_they_say() -> None:
    workload = Minutes(counts=[6000, 60_000], cv=2, minute_seconds=6)
    counts = np.histogram(times_of(workload, 120), 20, (0, 120))[0]
    assert counts[::2].mean() == pytest.approx(600, rel=0.1)
    assert counts[1::2].mean() == pytest.approx(6000, rel=0.05)
    # More than Poisson would: the variance of a renewal count is about its mean times cv squared.
    assert counts[1::2].std() > 1.3 * 6000**0.5


def test_steps_tell_their_phase_and_bring_their_length() -> None:
    workload = Steps(rate=100, factors=[1, 3], step_seconds=20)
    assert duration(workload, 999) == 40
    assert workload.phases == ("1×", "3×")
    by_phase: dict[int, list[int]] = {0: [], 1: []}
    for phase, block in arrivals(workload, 999, 0, stream(1, "workload")):
        by_phase[phase] += block
    assert max(by_phase[0]) <= 20 * SECOND <= min(by_phase[1])
    assert len(by_phase[0]) == pytest.approx(2000, rel=0.1)
    assert len(by_phase[1]) == pytest.approx(6000, rel=0.1)
