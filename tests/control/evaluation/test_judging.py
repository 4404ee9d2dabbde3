"""Canaries judged: when it looks, what it says, and by simulation how often it is right under noise."""

from __future__ import annotations

import math

import pytest
from canary_runs import Traffic, rolled_back
from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.evaluation.figures import Figures
from isochrone.control.evaluation.judging import PROMOTE, ROLL_BACK, WAIT, judge
from isochrone.control.state.rollout_records import CanaryRule
from isochrone.gateway.evaluation.counts import bucket_of

RULE = CanaryRule()


def version(requests: int, milliseconds: float = 10.0, failures: int = 0) -> Figures:
    """Nine in ten take this long, one in ten twice as long."""
    good = requests - failures
    slow = good // 10
    quick, slower = bucket_of(int(milliseconds * 1e6)), bucket_of(int(milliseconds * 2e6))
    return Figures(requests, failures, {quick: good - slow, slower: slow})


def test_an_equal_version_is_promoted_with_its_figures_told() -> None:
    verdict = judge(RULE, version(9500), version(500), 25.0, 0)
    assert verdict.kind == PROMOTE
    assert verdict.reason.startswith("not worse: p95 ")
    assert "(×1.00, allowed ×1.10)" in verdict.reason
    assert "0.00% failures against 0.00% (+0.00 points, allowed +0.50)" in verdict.reason
    assert verdict.reason.endswith("500 and 9,500 requests")


def test_a_slower_version_is_rolled_back_with_its_figures_told() -> None:
    verdict = judge(RULE, version(2400), version(800, 13.0), 25.0, 0)
    assert verdict.kind == ROLL_BACK
    assert verdict.reason.startswith("p95 2")
    assert "(×1.29, " in verdict.reason
    assert verdict.reason.endswith("allowed ×1.10), p < 0.001, 800 and 2,400 requests")


def test_a_failing_version_is_rolled_back_with_its_figures_told() -> None:
    verdict = judge(RULE, version(9500, failures=95), version(1000, failures=50), 25.0, 0)
    assert verdict.kind == ROLL_BACK
    expected = "5.00% failures against 1.00% (+4.00 points, allowed +0.50), p < 0.001, 1,000 and 9,500 requests"
    assert verdict.reason == expected


def test_a_version_that_fails_outright_goes_back_long_before_min_samples() -> None:
    verdict = judge(RULE, version(1200), version(63, failures=60), 0.5, 0)
    assert verdict.kind == ROLL_BACK
    # And a slow one is waited for: it may have to warm up.
    assert judge(RULE, version(1200), version(63, 90.0), 0.5, 0).kind == WAIT


@pytest.mark.parametrize(("requests", "seconds"), [(499, 60.0), (5000, 4.9), (0, 0.0)])
def test_nothing_is_promoted_before_its_time(requests: int, seconds: float) -> None:
    verdict = judge(RULE, version(9500), version(requests), seconds, 0)
    assert verdict.kind == WAIT
    assert verdict.reason.startswith(f"{requests:,} and 9,500 requests in {seconds:.0f} s")
    assert verdict.reason.endswith("judged from 500 of each and 5 s on")


def test_between_looks_it_tells_its_figures_and_when_it_looks_again() -> None:
    unsure = judge(RULE, version(9500), version(500, failures=3), 25.0, 0)
    assert (unsure.kind, unsure.looks) == (WAIT, 7)
    verdict = judge(RULE, version(11_400), version(600, failures=3), 30.0, unsure.looks)
    assert (verdict.kind, verdict.looks) == (WAIT, 7)
    assert verdict.reason.startswith("not sure yet: p95 ")
    assert verdict.reason.endswith("600 and 11,400 requests in 30 s, next look at 708 of each")
    assert judge(RULE, version(13_000), version(707, failures=3), 35.0, 7).looks == 7
    assert judge(RULE, version(13_000), version(708, failures=3), 35.0, 7).looks > 7


def test_when_time_is_up_it_says_what_is_known() -> None:
    few = judge(RULE, version(9500), version(49), 600.0, 3)
    assert few.kind == ROLL_BACK
    assert few.reason == "not enough requests: 49 and 9,500 in 600 s, expected at least 50 of each version"
    assert judge(RULE, version(0), version(900), 600.0, 0).kind == ROLL_BACK
    some = judge(RULE, version(9500), version(60), 600.0, 3)
    assert some.kind == PROMOTE
    assert some.reason.startswith("not shown worse in 600 s: ")
    assert judge(RULE, version(9500), version(60, 90.0), 600.0, 3).kind == ROLL_BACK
    assert judge(RULE, version(9500), version(60, failures=20), 600.0, 3).kind == ROLL_BACK


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=40))
def test_it_looks_each_time_there_is_root_two_as_much_and_not_before(arrivals: list[int]) -> None:
    """Failures that are too many, but not surely: it waits all the time, and seldom looks."""
    looks, seen = 0, 0
    for number in arrivals:
        seen += number
        verdict = judge(RULE, version(seen * 19), version(seen, failures=seen // 150), 30.0, looks)
        assert verdict.looks >= looks
        if verdict.kind != WAIT:
            return
        if verdict.looks > looks:
            assert seen * 1.000001 >= 500 / 8 * math.sqrt(2) ** (verdict.looks - 1)
        else:
            assert seen < 500 / 8 * math.sqrt(2) ** looks * 1.000001
        looks = verdict.looks


def test_looks_never_spend_more_than_is_allowed() -> None:
    """The same borderline counts pass or not by what is left: shares of any schedule of looks sum up to the whole."""
    from isochrone.control.evaluation.judging import _allowance

    whole = RULE.significance / len(RULE.weights) / 2
    for schedule in ([(0, 0), (1, 1), (2, 2), (3, 9), (10, 30)], [(5, 5)], [(0, 40)]):
        spent = sum(_allowance(RULE, first, last) for first, last in schedule)
        left = _allowance(RULE, schedule[-1][1] + 1, None)
        assert spent + left <= whole * (1 + 1e-12)
    assert _allowance(RULE, 0, None) == pytest.approx(whole)


# How often it is right: the default rule over three steps, under noise that both versions share. The seed is fixed.


@pytest.mark.long
def test_equal_versions_are_promoted() -> None:
    share, _, _ = rolled_back(RULE, Traffic(), 300, 11)
    assert share <= 0.02


@pytest.mark.long
def test_equal_versions_with_heavy_tails_and_strong_noise_are_promoted() -> None:
    share, _, _ = rolled_back(RULE, Traffic(spread=1.2, drift=0.3, failures=0.0), 100, 12)
    assert share <= 0.02


@pytest.mark.long
def test_a_version_that_is_30_percent_slower_is_rolled_back() -> None:
    share, _, _ = rolled_back(RULE, Traffic(slower=1.3), 300, 13)
    assert share >= 0.98


@pytest.mark.long
def test_a_version_with_two_percent_more_failures_is_rolled_back() -> None:
    share, _, _ = rolled_back(RULE, Traffic(more_failures=0.02), 300, 14)
    assert share >= 0.98


@pytest.mark.long
def test_little_traffic_takes_longer_and_is_judged_as_well() -> None:
    """40 requests a second: two of them the canary's in the first step."""
    share, _, _ = rolled_back(RULE, Traffic(slower=1.3, requests_per_second=40.0, failures=0.0), 50, 15)
    assert share >= 0.98
