"""What estimates leave free: how margins grow, what they leave out, and that they are forgotten."""

from __future__ import annotations

import pytest

from isochrone.clock import MILLISECOND
from isochrone.worker.backends.generative import GenerationLimits
from isochrone.worker.generation.scheduling.margins import DeliveryMargin, WaitMargin
from isochrone.worker.generation.scheduling.step_times import StepTimes

LIMITS = GenerationLimits(context_tokens=2048, block_tokens=16, blocks=4000, rows=64, prefill_tokens=512)
STEP = 10 * MILLISECOND


def delivered(*times_ms: float) -> DeliveryMargin:
    margin = DeliveryMargin()
    for each in times_ms:
        margin.note(round(each * MILLISECOND), STEP)
    return margin


def test_deliveries_count_by_how_much_they_vary() -> None:
    assert delivered(*[3.0] * 600).ns == 0
    varying = delivered(*[5.0 if step % 8 == 0 else 3.0 for step in range(64)])
    assert 2 * MILLISECOND <= varying.ns <= 2.2 * MILLISECOND


def test_a_delivery_that_stalls_is_left_out() -> None:
    quiet = [3.0, 3.5] * 256
    before = delivered(*quiet).ns
    assert delivered(*quiet, 103.0, 3.0, 103.0, 3.0, 103.0).ns == pytest.approx(before, rel=0.1)
    # Three that are long without being stalls are exceptions; they make the others count for more.
    assert delivered(*quiet, 23.0, 3.0, 23.0, 3.0, 23.0).ns < 8 * MILLISECOND
    assert delivered(*[3.0, 3.5] * 5, 103.0).ns == pytest.approx(before, rel=0.3)


def test_deliveries_are_forgotten_with_steps_that_have_none() -> None:
    margin = delivered(*[2.0, 9.0] * 100)
    assert margin.ns > 6 * MILLISECOND
    for _ in range(4 * 200):
        margin.fade()
    assert margin.ns == 0


def test_steps_with_deliveries_forget_none() -> None:
    margin = DeliveryMargin()
    for step in range(1000):
        margin.fade()
        margin.note((9 if step % 100 == 0 else 2) * MILLISECOND, STEP)
    assert margin.ns > 6 * MILLISECOND


def waited(*ratios: float) -> WaitMargin:
    margin = WaitMargin()
    for each in ratios:
        margin.note(each)
    return margin


def test_waits_stretch_predictions_up_to_twice() -> None:
    # Shorter ones promise nothing.
    assert waited(*[0.5] * 200).factor == pytest.approx(1.05)
    assert waited(*[1.4] * 200).factor == pytest.approx(1.4)
    assert waited(*[50.0] * 200).factor == 2
    assert waited(*[1.4] * 7).factor == pytest.approx(1.05)
    assert waited(*[1.9] * 200, *[1.0] * 128).factor == pytest.approx(1.05)


def test_waits_are_forgotten_with_steps() -> None:
    margin = waited(*[1.9] * 128)
    for _ in range(128 * 16):
        margin.fade()
    assert margin.factor == pytest.approx(1.05)


def test_margins_are_part_of_the_costs_and_of_no_step() -> None:
    times = StepTimes(LIMITS)
    for step in range(200):
        times.observe(8, 4000, 0, STEP)
        times.observe_delivery((9 if step % 10 == 0 else 2) * MILLISECOND)
        times.observe_wait(100 * MILLISECOND, 150 * MILLISECOND)
    costs = times.costs
    assert costs.delivery == pytest.approx(1.1 * 7 * MILLISECOND, rel=0.01)
    assert costs.waiting == pytest.approx(1.5)
    assert costs.estimate(8, 4000, 0) == pytest.approx(1.05 * STEP, rel=0.05)
    assert costs.between_tokens(8, 4000, 0) == pytest.approx(costs.estimate(8, 4000, 0) + costs.delivery, abs=1)
    plain = costs.without_margins()
    assert (plain.delivery, plain.waiting) == (0, 1.05)
    times.observe_wait(0, 10**12)
    assert times.costs.waiting == pytest.approx(1.5)
