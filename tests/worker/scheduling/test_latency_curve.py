"""The latency curve: cautious, soon right again, and never absurd, by example and for any runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import MICROSECOND, MILLISECOND
from isochrone.worker.scheduling.latency_curve import LatencyCurve, RunningTime

RUNS = st.lists(st.tuples(st.integers(1, 16), st.integers(1_000, 50_000_000)), min_size=1, max_size=80)


def measured(curve: LatencyCurve, rows: int, nanoseconds: int, times: int = 40) -> LatencyCurve:
    for _ in range(times):
        curve.observe(rows, nanoseconds)
    return curve


def test_nothing_is_known_at_first() -> None:
    curve = LatencyCurve(8)
    assert [curve.estimate(rows) for rows in range(1, 10)] == [0] * 9


@given(RUNS)
def test_a_larger_batch_is_never_expected_to_be_faster(runs: list[tuple[int, int]]) -> None:
    curve = LatencyCurve(16)
    for rows, nanoseconds in runs:
        curve.observe(rows, nanoseconds)
    estimates = [curve.estimate(rows) for rows in range(1, 40)]
    assert estimates == sorted(estimates)
    assert estimates[0] > 0


@given(st.lists(st.integers(100_000, 200_000), min_size=64, max_size=128))
def test_an_estimate_stays_near_what_was_seen(times: list[int]) -> None:
    curve = LatencyCurve(1)
    for nanoseconds in times:
        curve.observe(1, nanoseconds)
    assert 100_000 <= curve.estimate(1) <= 350_000


def test_steady_runs_need_little_caution() -> None:
    """What is planned too long is batched too small: 20 % of caution costs nearly as much goodput."""
    curve = LatencyCurve(16)
    for _ in range(3):
        for rows in (1, 2, 4, 8, 16):
            curve.observe(rows, rows * MILLISECOND)
    assert curve.estimate(16) <= 1.15 * 16 * MILLISECOND
    for _ in range(10):
        measured(curve, 8, 8 * MILLISECOND)
    assert 8 * MILLISECOND <= curve.estimate(8) <= 1.02 * 8 * MILLISECOND
    # Sizes that did not run take over that the machine is steady.
    assert curve.estimate(16) <= 1.05 * 16 * MILLISECOND


def test_interpolates_between_sizes_and_extends_in_proportion() -> None:
    curve = LatencyCurve(16)
    measured(curve, 4, 4 * MILLISECOND, 400)
    measured(curve, 8, 8 * MILLISECOND, 400)
    at = {rows: curve.estimate(rows) / MILLISECOND for rows in (1, 4, 6, 8, 16, 32)}
    assert at[1] == at[4]
    assert abs(at[6] - 6) < 0.2
    assert abs(at[16] - 16) < 0.5
    assert at[32] == 2 * at[16]


def test_one_stall_does_not_shut_the_door() -> None:
    curve = measured(LatencyCurve(1), 1, MILLISECOND, 100)
    curve.observe(1, 200 * MILLISECOND)
    measured(curve, 1, MILLISECOND, 8)
    assert curve.estimate(1) < 1.3 * MILLISECOND


def test_a_lasting_change_is_followed_soon() -> None:
    curve = measured(LatencyCurve(1), 1, MILLISECOND, 100)
    measured(curve, 1, 3 * MILLISECOND, 32)
    assert curve.estimate(1) > 2.8 * MILLISECOND
    measured(curve, 1, MILLISECOND, 128)
    assert curve.estimate(1) < 1.3 * MILLISECOND


def test_sizes_that_do_not_run_drift_with_their_neighbours() -> None:
    curve = LatencyCurve(8)
    for rows in (4, 8):
        measured(curve, rows, rows * MILLISECOND, 50)
    measured(curve, 4, 6 * MILLISECOND, 200)
    assert curve.estimate(8) > 8.5 * MILLISECOND


def test_nonsense_is_not_learnt() -> None:
    curve = measured(LatencyCurve(2), 1, 100 * MICROSECOND)
    before = list(curve.estimates)
    curve.observe(0, 5)
    curve.observe(3, 5)
    curve.observe(1, 0)
    curve.observe(1, -5)
    assert curve.estimates == before


def test_mean_has_no_caution() -> None:
    curve = measured(LatencyCurve(2), 1, 100 * MICROSECOND)
    assert curve.mean(1) == 100 * MICROSECOND
    assert curve.mean(2) == 0


def test_relaxing_goes_back_towards_the_best_seen_and_no_further() -> None:
    curve = LatencyCurve(8)
    for _ in range(20):
        curve.observe(1, 1_000_000)
    best = curve.estimates[1]
    for _ in range(60):
        curve.observe(1, 14_000_000)
    assert curve.estimates[1] > 10_000_000
    for _ in range(20):
        curve.relax()
    assert best * 0.8 <= curve.estimates[1] <= best * 1.2


def test_a_curve_that_knows_nothing_has_nothing_to_relax() -> None:
    curve = LatencyCurve(4)
    curve.relax()
    assert curve.estimates == [0] * 5


def test_one_stall_weighs_little_in_a_running_time_and_relaxing_forgets_it() -> None:
    time = RunningTime()
    for _ in range(20):
        time.observe(400_000)
    time.observe(80_000_000)
    assert time.cautious < 1_000_000
    before = time.cautious
    time.relax()
    assert time.cautious < before
