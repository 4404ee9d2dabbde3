"""The watch over the learned slice: silent by chance, loud when it is worse, and not for good news."""

from __future__ import annotations

from random import Random

import pytest

from isochrone.gateway.policies.learned.slices import CONTROL, LEARNED, Slices

MS = 1_000_000


def play(slices: Slices, random: Random, count: int, slowness: float = 1.0, failing: float = 0.0) -> str:
    """So many requests, a tenth of them of the control slice; ``slowness``: of the learned one's slowest twentieth."""
    for _ in range(count):
        which = CONTROL if random.random() < 0.1 else LEARNED
        latency = random.lognormvariate(0.0, 0.5) * 2 * MS
        if which == LEARNED and random.random() < 0.05:
            latency *= slowness
        failed = which == LEARNED and random.random() < failing
        verdict = slices.ended(which, int(latency), failed)
        if verdict:
            return verdict
    return ""


@pytest.mark.parametrize("seed", range(10))
def test_chance_alone_is_no_alarm(seed: int) -> None:
    assert play(Slices(), Random(seed), 40_000) == ""


@pytest.mark.parametrize("seed", range(5))
def test_a_longer_tail_is_found(seed: int) -> None:
    slices = Slices()
    assert "p99" in play(slices, Random(seed), 40_000, slowness=4.0)
    assert slices.p99_ns(LEARNED) > 1.1 * slices.p99_ns(CONTROL)


def test_a_change_after_a_long_good_time_is_found() -> None:
    slices, random = Slices(), Random(1)
    assert play(slices, random, 100_000) == ""
    assert "p99" in play(slices, random, 40_000, slowness=4.0)


def test_more_failures_are_found_and_fast_failures_do_not_look_fast() -> None:
    assert "failed" in play(Slices(), Random(2), 40_000, failing=0.03)


def test_a_shorter_tail_is_no_alarm() -> None:
    assert play(Slices(), Random(3), 40_000, slowness=0.2) == ""


@pytest.mark.parametrize("count", [5_000, 130_000])
def test_the_tails_that_are_kept_are_those_of_the_counts(count: int) -> None:
    """Also after the counts were halved, which happens at 100,000."""
    slices = Slices()
    assert play(slices, Random(4), count) == ""
    slices.settle()
    learned, control = slices.learned, slices.control
    assert learned.answered == sum(learned.counts)
    assert (learned.answered + control.answered < count) == (count > 100_000)
    for tail in slices._tails:
        assert tail.learned == sum(learned.counts[tail.place :])
        assert tail.control == sum(control.counts[tail.place :])
        tail.move(learned, control)
        total = learned.answered + control.answered
        below = sum(learned.counts[: tail.place]) + sum(control.counts[: tail.place])
        inside = learned.counts[tail.place] + control.counts[tail.place]
        assert below < tail.quantile * total <= below + inside


def test_nothing_is_said_of_a_few_requests() -> None:
    slices = Slices()
    for _ in range(300):
        assert slices.ended(LEARNED, 900 * MS, False) == ""
    for _ in range(300):
        assert slices.ended(CONTROL, 1 * MS, False) == ""


def test_the_p99_is_within_a_bucket_of_the_true_one() -> None:
    slices = Slices()
    for latency in range(1, 10_001):
        slices.ended(LEARNED, latency * 1000, False)
    assert slices.p99_ns(LEARNED) == pytest.approx(9_900_000, rel=0.05)
    assert slices.p99_ns(CONTROL) == 0.0
