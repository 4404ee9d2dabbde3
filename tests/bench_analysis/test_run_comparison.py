"""Comparisons: equal servers show no difference, other ones do, and what cannot be compared is named."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_runs import a_run, latencies_run, one_server_queue

from isochrone.bench.analysis.comparison import Comparison, ComparisonVerdict, compare
from isochrone.bench.analysis.time_blocks import block_length, correlated_slots, drawn_weights
from isochrone.bench.results.outcomes import FAILED, OK, GeneratorUse, Run
from isochrone.clock import MILLISECOND


def verdicts(comparison: Comparison) -> dict[str, ComparisonVerdict]:
    return {each.name: each.verdict for each in comparison.differences}


def queue(seed: int, capacity: float = 1000.0, seconds: float = 30.0, rate: float = 700.0) -> Run:
    return one_server_queue(np.random.default_rng(seed), rate, capacity, seconds)


def test_equal_servers_show_no_difference() -> None:
    # Latencies of a queue are correlated over hundreds of requests. 15 pairs have 75 verdicts on percentiles.
    found = [verdicts(compare(queue(seed), queue(100 + seed))) for seed in range(15)]
    false = [
        (pair, name)
        for pair, each in enumerate(found)
        for name, verdict in each.items()
        if name.startswith("p") and verdict is not ComparisonVerdict.NO_DIFFERENCE
    ]
    assert len({pair for pair, _ in false}) <= 1, false


def test_independent_draws_would_have_called_noise_a_difference() -> None:
    """The blocks are what keeps the verdicts honest: one request as a block would not."""
    widths = []
    for seed in range(3):
        run = queue(seed)
        shuffled = np.random.default_rng(seed).permutation(run.outcomes.ended_ns - run.outcomes.intended_ns)
        independent = a_run(run.outcomes.intended_ns, run.outcomes.intended_ns + shuffled, rate=run.rate, seconds=30)
        blocks = next(each for each in compare(run, run).differences if each.name == "p50")
        single = next(each for each in compare(independent, independent).differences if each.name == "p50")
        widths.append((blocks.high - blocks.low) / (single.high - single.low))
    assert min(widths) > 2


def test_a_slower_server_is_slower_and_the_other_way_round_faster() -> None:
    slow = compare(queue(1), queue(2, capacity=900.0))
    assert verdicts(slow)["p50"] is ComparisonVerdict.SLOWER
    assert verdicts(slow)["p99"] is ComparisonVerdict.SLOWER
    assert slow.is_regression
    assert "p50" in slow.sentence
    fast = compare(queue(2, capacity=900.0), queue(1))
    assert verdicts(fast)["p99"] is ComparisonVerdict.FASTER
    assert not fast.is_regression


def test_runs_of_other_lengths() -> None:
    comparison = compare(queue(1, seconds=60), queue(2, seconds=20))
    assert verdicts(comparison)["p50"] is ComparisonVerdict.NO_DIFFERENCE
    assert comparison.warnings == ()
    assert (
        verdicts(compare(queue(1, seconds=60), queue(2, capacity=850, seconds=20)))["p50"] is ComparisonVerdict.SLOWER
    )


def test_the_interval_holds_the_true_difference() -> None:
    # The median is ln(2) / (capacity - rate).
    true = np.log(2) * (1 / 200 - 1 / 300) * 1e9
    held = 0
    for seed in range(12):
        (difference,) = (
            each
            for each in compare(queue(seed, seconds=60), queue(50 + seed, capacity=900, seconds=60)).differences
            if each.name == "p50"
        )
        held += difference.low <= true <= difference.high
    assert held >= 11


def test_errors() -> None:
    def failing(share: float, seed: int) -> Run:
        random = np.random.default_rng(seed)
        return latencies_run(np.full(10_000, MILLISECOND), outcome=np.where(random.random(10_000) < share, FAILED, OK))

    assert verdicts(compare(failing(0.01, 1), failing(0.03, 2)))["errors"] is ComparisonVerdict.MORE_ERRORS
    assert verdicts(compare(failing(0.03, 1), failing(0.01, 2)))["errors"] is ComparisonVerdict.FEWER_ERRORS
    assert verdicts(compare(failing(0.02, 1), failing(0.02, 2)))["errors"] is ComparisonVerdict.NO_DIFFERENCE
    assert verdicts(compare(failing(0, 1), failing(0, 2)))["errors"] is ComparisonVerdict.NO_DIFFERENCE


def test_small_differences_are_not_called() -> None:
    a = latencies_run(np.full(10_000, 1_000_000))
    assert verdicts(compare(a, latencies_run(np.full(10_000, 1_015_000))))["p50"] is ComparisonVerdict.NO_DIFFERENCE
    assert verdicts(compare(a, latencies_run(np.full(10_000, 1_030_000))))["p50"] is ComparisonVerdict.SLOWER


def test_the_closed_loop_rate_is_compared() -> None:
    def closed(each_ms: float) -> Run:
        intended = np.arange(int(10_000 / each_ms)) * int(each_ms * MILLISECOND)
        return a_run(intended, intended + int(each_ms * MILLISECOND), rate=None, in_flight=1)

    assert verdicts(compare(closed(1), closed(1.25)))["rate"] is ComparisonVerdict.SLOWER
    assert verdicts(compare(closed(1.25), closed(1)))["rate"] is ComparisonVerdict.FASTER


def test_tails_of_few_requests_get_no_verdict() -> None:
    few = verdicts(compare(latencies_run([MILLISECOND] * 500), latencies_run([9 * MILLISECOND] * 500)))
    assert few["p50"] is ComparisonVerdict.SLOWER
    assert few["p99"] is ComparisonVerdict.TOO_FEW
    tiny = compare(latencies_run([MILLISECOND] * 5), latencies_run([9 * MILLISECOND] * 5))
    assert set(verdicts(tiny).values()) == {ComparisonVerdict.TOO_FEW}
    assert "measure longer" in tiny.sentence
    empty = compare(latencies_run([]), latencies_run([]))
    assert set(verdicts(empty).values()) == {ComparisonVerdict.TOO_FEW}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"rate": 2000.0}, "different rates"),
        ({"rate": None, "in_flight": 8}, "closed"),
        ({"kinds": ("other",)}, "different kinds"),
    ],
)
def test_runs_that_are_not_comparable_are_named(changes: dict[str, object], names: str) -> None:
    latencies = np.full(1_000, MILLISECOND)
    comparison = compare(latencies_run(latencies), latencies_run(latencies, **changes))
    assert any(names in each for each in comparison.obstacles), comparison.obstacles
    assert not comparison.is_comparable
    assert not comparison.is_regression
    assert names in comparison.sentence
    assert comparison.as_json()["comparable"] is False


def test_an_overloaded_run_is_named() -> None:
    growing = np.linspace(1, 100, 2_000) * MILLISECOND
    comparison = compare(latencies_run(np.full(2_000, MILLISECOND)), latencies_run(growing))
    assert any("overloaded" in warning and "second" in warning for warning in comparison.warnings)


def test_the_same_runs_give_the_same_comparison() -> None:
    a, b = queue(1, seconds=5), queue(2, seconds=5)
    assert compare(a, b) == compare(a, b)
    json.dumps(compare(a, b).as_json(), allow_nan=False)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(1, 10**10), max_size=200),
    st.lists(st.integers(1, 10**10), max_size=200),
)
def test_any_two_runs_can_be_compared(a: list[int], b: list[int]) -> None:
    comparison = compare(latencies_run(a), latencies_run(b))
    for each in comparison.differences:
        assert each.low <= each.difference <= each.high
    json.dumps(comparison.as_json(), allow_nan=False)
    assert comparison.sentence
    assert comparison.method


@given(st.integers(8, 256), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_every_draw_has_as_many_slots_as_the_run(slots: int, length: int, seed: int) -> None:
    weights = drawn_weights(np.random.default_rng(seed), slots, min(length, slots), 20)
    assert weights.shape == (20, slots)
    assert (weights.sum(axis=1) == slots).all()


def test_blocks_are_longer_than_the_correlation() -> None:
    random = np.random.default_rng(4)
    noise = random.normal(size=256)
    smooth = np.convolve(random.normal(size=263), np.ones(8) / 8, mode="valid")
    assert correlated_slots(noise) <= 2
    assert 4 <= correlated_slots(smooth) <= 16
    assert block_length(256, 0) == 7
    assert block_length(256, 8) == 16
    assert block_length(256, 200) == 21


def test_blocks_that_cannot_be_as_long_as_the_correlation_are_named() -> None:
    """Latencies that rise and fall once in the run: no block holds that."""
    slow = MILLISECOND * (2 + np.sin(np.linspace(0, 2 * np.pi, 4_000)))
    comparison = compare(latencies_run(slow), latencies_run(np.full(4_000, MILLISECOND)))
    assert any("correlated" in each and "first run" in each for each in comparison.warnings)
    assert "which shortened these" in comparison.method
    steady = compare(latencies_run(np.full(4_000, MILLISECOND)), latencies_run(np.full(4_000, MILLISECOND)))
    assert not any("correlated" in each for each in steady.warnings)
    assert "at most a twelfth" in steady.method


@pytest.mark.parametrize(
    ("generator", "is_comparable"),
    [
        (GeneratorUse(0.97, 0, 0, 0), False),
        (GeneratorUse(0.3, 0, MILLISECOND, MILLISECOND), True),
        (GeneratorUse(0.3, 0, 0, 0), True),
    ],
)
def test_a_generator_that_was_the_bottleneck_is_named(generator: GeneratorUse, is_comparable: bool) -> None:
    latencies = np.full(1_000, MILLISECOND)
    comparison = compare(latencies_run(latencies), latencies_run(3 * latencies, generators=(generator,)))
    assert comparison.is_comparable is is_comparable
    assert comparison.is_regression is is_comparable
    said = "Of the second run: The generator" in " ".join((*comparison.obstacles, *comparison.warnings))
    assert said is (generator.cpu_share > 0.9 or generator.lag_p99_ns > 0)


def test_unfinished_requests_are_named() -> None:
    run = latencies_run(np.full(1_000, MILLISECOND))
    assert any("17 requests have no outcome" in each for each in compare(run, replace(run, unfinished=17)).warnings)
