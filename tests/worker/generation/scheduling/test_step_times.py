"""How long steps take: learned, cautious, and not spoilt by long runs of equal steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.worker.backends.generative import GenerationLimits
from isochrone.worker.generation.scheduling.step_times import StepCosts, StepTimes

LIMITS = GenerationLimits(context_tokens=1024, block_tokens=16, blocks=2000, rows=64, prefill_tokens=512)


def true_ns(rows: int, context: int, prefill: int) -> float:
    return 2e6 + 2e4 * rows + 50 * context + 3e4 * prefill


def learned(steps: int = 400, scatter: float = 0.0) -> StepTimes:
    chance = random.Random(1)
    times = StepTimes(LIMITS)
    for _ in range(steps):
        rows, prefill = chance.randrange(65), chance.choice([0, 0, 0, 16, 200, 512])
        context = rows * chance.randrange(1, 1000) + prefill
        ns = true_ns(rows, context, prefill) * chance.uniform(1 - scatter, 1 + scatter)
        times.observe(rows, context, prefill, round(ns))
    return times


def test_nothing_is_known_at_first() -> None:
    costs = StepTimes(LIMITS).costs
    assert (costs.is_known, costs.estimate(5, 5, 5), costs.prefill_within(1, 5, 5, 99)) == (False, 0, 99)


@pytest.mark.parametrize("step", [(1, 100, 0), (64, 60_000, 0), (10, 5000, 512), (0, 512, 512)])
def test_the_parts_are_found(step: tuple[int, int, int]) -> None:
    assert learned().costs.expected(*step) == pytest.approx(true_ns(*step), rel=0.05)
    # With scatter, on the side of caution.
    assert learned(scatter=0.2).costs.estimate(*step) >= 0.95 * true_ns(*step)


def test_equal_steps_for_long_leave_the_rest_as_it_was() -> None:
    times = learned()
    for _ in range(5000):
        times.observe(8, 4000, 0, round(true_ns(8, 4000, 0)))
    assert times.costs.expected(0, 512, 512) == pytest.approx(true_ns(0, 512, 512), rel=0.3)
    assert times.costs.expected(8, 4000, 0) == pytest.approx(true_ns(8, 4000, 0), rel=0.03)


def test_the_factor_is_what_few_steps_exceed() -> None:
    chance = random.Random(2)
    times = learned()
    assert times.costs.decoding == pytest.approx(1.05)
    for _ in range(20_000):
        slow = 2.0 if chance.random() < 0.02 else 1.0
        times.observe(8, 4000, 0, round(true_ns(8, 4000, 0) * slow))
    assert 1.7 <= times.costs.decoding <= 2.4
    assert times.costs.estimate(8, 4000, 0) >= 1.7 * true_ns(8, 4000, 0)
    for _ in range(20_000):
        times.observe(8, 4000, 0, round(true_ns(8, 4000, 0)))
    assert times.costs.decoding < 1.1


def test_prompts_that_take_longer_than_they_should_leave_other_steps_alone() -> None:
    times = learned()
    chance = random.Random(4)
    for _ in range(4000):
        prefill = 64 if chance.random() < 0.2 else 0
        slow = chance.choice([1.0, 1.8]) if prefill else 1.0
        times.observe(8, 4000, prefill, round(true_ns(8, 4000, prefill) * slow))
    assert times.costs.prompting > 1.2
    assert times.costs.estimate(8, 4000, 0) == pytest.approx(true_ns(8, 4000, 0), rel=0.3)


def test_a_step_that_was_interrupted_does_not_spoil_it() -> None:
    times = learned()
    times.observe(8, 4000, 0, 10_000_000_000)
    for _ in range(200):
        times.observe(8, 4000, 0, round(true_ns(8, 4000, 0)))
    assert times.costs.estimate(8, 4000, 0) == pytest.approx(true_ns(8, 4000, 0), rel=0.5)


def test_a_stalled_step_with_a_prompt_does_not_keep_others_out() -> None:
    times = learned()
    before = times.costs.estimate(8, 4016, 16)
    times.observe(8, 4400, 400, round(30 * true_ns(8, 4400, 400)))
    for _ in range(8):
        times.observe(8, 4000, 0, round(true_ns(8, 4000, 0)))
    assert times.costs.estimate(8, 4016, 16) < 2 * before


def test_slow_steps_with_prompts_are_forgotten_though_no_others_come() -> None:
    times = learned()
    before = times.costs.prompting
    chance = random.Random(6)
    for _ in range(600):
        times.observe(8, 4100, 100, round(true_ns(8, 4100, 100) * chance.choice([1.0, 2.5])))
    assert times.costs.prompting > 1.5 * before
    for _ in range(4000):
        times.observe(8, 4000, 0, round(true_ns(8, 4000, 0)))
    assert times.costs.prompting == pytest.approx(before, rel=0.05)


@given(st.integers(0, 10**8), st.integers(0, 64), st.integers(0, 50_000))
def test_a_chunk_within_a_budget_keeps_it(budget: int, rows: int, context: int) -> None:
    costs = StepCosts(2e6, 2e4, 50, 3e4, 1e6, 1.1, 1.3, delivery=5e5)
    most = costs.prefill_within(budget, rows, context, 512)
    assert 0 <= most <= 512
    if most:
        assert costs.between_tokens(rows, context + most, most) <= budget + 1
    # Steps with prompts have the larger margin: where decoding alone fits, the smallest chunk may not.
    if 0 < most < 512:
        assert costs.between_tokens(rows, context + most + 1, most + 1) > budget - 1
    if not most:
        assert costs.between_tokens(rows, context + 1, 1) > budget - 1


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 60_000), st.integers(0, 512), st.integers(1, 10**10))))
def test_no_measurement_makes_a_negative_cost(steps: list[tuple[int, int, int, int]]) -> None:
    times = StepTimes(LIMITS)
    for step in steps:
        times.observe(*step)
        costs = times.costs
        assert min(costs.fixed, costs.row, costs.context, costs.prefill, costs.prompt) >= 0
        assert 1 <= min(costs.decoding, costs.prompting) <= max(costs.decoding, costs.prompting) <= 3
