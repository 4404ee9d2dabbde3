"""Exact bounds against sums of fractions, and coverage of intervals by repeated draws."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.bench.analysis.binomial import rank_bounds, share_bounds
from isochrone.bench.analysis.dispersion import effective_count
from isochrone.bench.analysis.distribution import Distribution, Evidence, evidence_of

TAIL = Fraction(25, 1000)


def at_most(successes: int, trials: int, chance: Fraction) -> Fraction:
    return sum(
        (comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(successes + 1)), start=Fraction(0)
    )


@given(count=st.integers(1, 120), percent=st.sampled_from([1, 25, 50, 90, 95, 99]))
def test_ranks_enclose_a_quantile_as_narrowly_as_the_confidence_allows(count: int, percent: int) -> None:
    share = Fraction(percent, 100)
    low, high = rank_bounds(count, percent / 100)
    # The chances that either rank is on the wrong side are at most the tail; a rank further inside, they are more.
    assert low == 0 or at_most(low - 1, count, share) <= TAIL
    assert at_most(low, count, share) > TAIL
    assert high == count + 1 or 1 - at_most(high - 1, count, share) <= TAIL
    assert 1 - at_most(high - 2, count, share) > TAIL


@given(trials=st.integers(1, 100), part=st.floats(0, 1))
def test_a_share_at_either_bound_would_be_seen_with_the_chance_of_the_tail(trials: int, part: float) -> None:
    successes = round(part * trials)
    low, high = share_bounds(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1
    if successes:
        assert float(1 - at_most(successes - 1, trials, Fraction(low))) == pytest.approx(float(TAIL), rel=1e-6)
    if successes < trials:
        assert float(at_most(successes, trials, Fraction(high))) == pytest.approx(float(TAIL), rel=1e-6)


@pytest.mark.parametrize("trials", [10, 3_688, 1_000_000, 20_000_000])
def test_no_success_in_many_trials(trials: int) -> None:
    low, high = share_bounds(0, trials)
    assert low == 0
    assert high == pytest.approx(-np.expm1(np.log(float(TAIL)) / trials), rel=1e-6)


def test_many_trials_agree_with_the_normal_distribution() -> None:
    low, high = share_bounds(500_000, 1_000_000)
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.0005, 0.5 + 1.96 * 0.0005), abs=2e-6)
    assert rank_bounds(1_000_000, 0.5) == pytest.approx((500_000 - 980, 500_000 + 980), abs=2)


def test_between_two_counts_the_wider_interval_is_given() -> None:
    assert share_bounds(3.5, 100) == (share_bounds(3, 100)[0], share_bounds(4, 100)[1])


def test_intervals_of_percentiles_hold_the_true_value_as_often_as_they_say() -> None:
    random = np.random.default_rng(1)
    held = {50.0: 0, 90.0: 0, 99.0: 0}
    for _ in range(400):
        distribution = Distribution((random.exponential(1.0, 1000) * 1e9).astype(np.int64))
        for percent in held:
            estimate = distribution.percentile(percent)
            assert estimate is not None
            held[percent] += estimate.low <= -np.log(1 - percent / 100) * 1e9 <= estimate.high
    # Three standard errors below 95 % of 400; far above would be intervals that are too wide.
    assert all(367 <= count <= 398 for count in held.values()), held


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.1, 0.5]))
def test_slow_requests_of_one_pause_are_few_independent_ones(seed: int, share: float) -> None:
    random = np.random.default_rng(seed)
    flags = np.zeros(20_000, dtype=np.bool_)
    start = int(random.integers(0, 10_000))
    flags[start : start + int(share * 20_000)] = True
    assert effective_count(flags) < 300
    # The same flags in any order are independent: at most 1 % of orders are taken for correlated, and then barely.
    assert effective_count(random.permutation(flags)) > 7_000


def test_independent_requests_count_as_they_are() -> None:
    random = np.random.default_rng(3)
    counted = [effective_count(random.random(5_000) < 0.02) == 5_000 for _ in range(300)]
    assert sum(counted) >= 290


@given(st.lists(st.booleans(), max_size=200))
def test_effective_counts_never_exceed_the_count(flags: list[bool]) -> None:
    evidence = evidence_of(np.array(flags, dtype=np.bool_))
    assert evidence.total == len(flags)
    assert min(1, len(flags)) <= evidence.effective <= len(flags)
    assert evidence.share.low <= evidence.share.value <= evidence.share.high


def test_evidence_adds_up() -> None:
    together = Evidence(1, 100, 50) + Evidence(3, 300, 300)
    assert together == Evidence(4, 400, 350)
    assert together.share.value == pytest.approx(0.01)
