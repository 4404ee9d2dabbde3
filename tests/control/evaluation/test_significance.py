"""The two tests against what can be counted out: exact chances of a false alarm, and tails known from elsewhere."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.evaluation.significance import failure_evidence, hypergeometric_tails, latency_evidence
from isochrone.gateway.evaluation.counts import bucket_of


@st.composite
def draws(draw: st.DrawFn) -> tuple[int, int, int, int]:
    total = draw(st.integers(1, 60))
    marked, drawn = draw(st.integers(0, total)), draw(st.integers(0, total))
    found = draw(st.integers(max(0, drawn - (total - marked)), min(marked, drawn)))
    return found, marked, drawn, total


@given(draws())
def test_tails_are_those_of_counting(case: tuple[int, int, int, int]) -> None:
    found, marked, drawn, total = case

    def ways(numbers: range) -> float:
        favourable = sum(math.comb(marked, each) * math.comb(total - marked, drawn - each) for each in numbers)
        return float(Fraction(favourable, math.comb(total, drawn)))

    lowest, highest = max(0, drawn - (total - marked)), min(marked, drawn)
    upper, lower = hypergeometric_tails(*case)
    assert upper == pytest.approx(ways(range(found, highest + 1)), rel=1e-9)
    assert lower == pytest.approx(ways(range(lowest, found + 1)), rel=1e-9)


def chances(requests: int, share: float) -> dict[int, float]:
    """Of each number of failures, but for those too unlikely to matter."""
    found = {}
    for failures in range(requests + 1):
        if share in (0, 1):
            chance = float(failures == requests * share)
        else:
            ways = math.lgamma(requests + 1) - math.lgamma(failures + 1) - math.lgamma(requests - failures + 1)
            chance = math.exp(ways + failures * math.log(share) + (requests - failures) * math.log1p(-share))
        if chance > 1e-8:
            found[failures] = chance
    return found


@pytest.mark.parametrize(("canary", "stable"), [(60, 1140), (250, 750), (200, 200)])
@pytest.mark.parametrize("share", [0.0, 0.002, 0.01])
def test_failures_alarm_no_more_often_than_allowed_when_the_margin_is_just_reached(
    canary: int, stable: int, share: float
) -> None:
    levels = (0.1, 0.01, 0.001, 0.0001)
    worse, not_worse = dict.fromkeys(levels, 0.0), dict.fromkeys(levels, 0.0)
    for failures, chance in chances(canary, share + 0.005).items():
        for others, other_chance in chances(stable, share).items():
            evidence = failure_evidence(failures, canary, others, stable, 0.005)
            for level in levels:
                worse[level] += chance * other_chance * (evidence.worse <= level)
                not_worse[level] += chance * other_chance * (evidence.not_worse <= level)
    for level in levels:
        assert worse[level] <= 1.2 * level
        assert not_worse[level] <= 1.2 * level


def test_failures_that_are_many_or_none_are_told_apart() -> None:
    assert failure_evidence(30, 60, 10, 1140, 0.005).worse < 1e-9
    assert failure_evidence(60, 60, 0, 1140, 0.005).worse < 1e-9
    assert failure_evidence(0, 500, 0, 9500, 0.005).not_worse < 0.1
    assert failure_evidence(0, 100, 0, 1900, 0.005).not_worse > 0.1
    assert failure_evidence(0, 500, 0, 9500, 0.005).worse == 1.0
    assert failure_evidence(0, 0, 0, 9500, 0.005) == (1.0, 1.0)
    assert failure_evidence(500, 500, 500, 500, 0.005).worse > 0.1


def histogram(latencies: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for latency in latencies:
        bucket = bucket_of(int(latency))
        counts[bucket] = counts.get(bucket, 0) + 1
    return counts


@pytest.mark.parametrize(("canary", "stable"), [(150, 1000), (400, 400)])
def test_latencies_alarm_no_more_often_than_allowed_when_the_ratio_is_just_reached(canary: int, stable: int) -> None:
    random = np.random.default_rng(5)
    runs, worse, not_worse = 300, 0, 0
    for _ in range(runs):
        old = np.exp(random.normal(16, 1.0, stable))
        new = 1.1 * np.exp(random.normal(16, 1.0, canary))
        evidence = latency_evidence(histogram(new), histogram(old), 0.95, 1.1)
        worse += evidence.worse <= 0.05
        not_worse += evidence.not_worse <= 0.05
    # 15 expected at most, and three standard deviations more.
    assert worse <= 26
    assert not_worse <= 26


def test_latencies_that_are_all_the_same_are_told_apart() -> None:
    old = {bucket_of(10_000_000): 1000}
    assert latency_evidence({bucket_of(10_000_000): 500}, old, 0.95, 1.1).not_worse < 1e-9
    assert latency_evidence({bucket_of(13_000_000): 500}, old, 0.95, 1.1).worse < 1e-9
    assert latency_evidence({}, old, 0.95, 1.1) == (1.0, 1.0)
    assert latency_evidence(old, {}, 0.95, 1.1).worse == 1.0


def test_a_slow_tail_is_found_and_a_slow_rest_below_the_quantile_is_not_its_matter() -> None:
    random = np.random.default_rng(6)
    old = np.exp(random.normal(16, 0.5, 5000))
    tail = np.exp(random.normal(16, 0.5, 500))
    tail[::10] *= 20
    assert latency_evidence(histogram(tail), histogram(old), 0.95, 1.1).worse < 1e-6
    median = np.exp(random.normal(16, 0.1, 500))
    assert latency_evidence(histogram(median), histogram(old), 0.95, 1.1).not_worse < 1e-6
