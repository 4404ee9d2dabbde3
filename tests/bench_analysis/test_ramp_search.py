"""The ramp against servers whose limit is known: exact ones, queues, and queues that are disturbed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_runs import latencies_run, one_server_queue, paused, several_server_queue

from isochrone.bench.analysis.ramp import Ramp, RampResult
from isochrone.bench.analysis.slo import parse_slo
from isochrone.bench.analysis.summary import Summary, summarize
from isochrone.bench.results.outcomes import Run
from isochrone.clock import MILLISECOND
from isochrone.errors import FlagError

SLO = parse_slo("p99<20ms")
KEPT = summarize(latencies_run([MILLISECOND] * 500))
MISSED = summarize(latencies_run([30 * MILLISECOND] * 500))
UNCLEAR = summarize(latencies_run([MILLISECOND] * 100))


def search(ramp: Ramp, measure: Callable[[float], Summary], most: int = 200) -> RampResult:
    for _ in range(most):
        rate = ramp.next_rate()
        if rate is None:
            result = ramp.result
            assert result is not None
            return result
        assert ramp.result is None
        ramp.observe(rate, measure(rate))
    raise AssertionError(f"no end after {most} runs")


@given(
    limit=st.floats(1, 1e6),
    low=st.floats(0.5, 1e3),
    factor=st.floats(1, 1e4),
    tolerance=st.floats(0.005, 0.2),
)
def test_an_exact_server_is_enclosed_within_the_tolerance(
    limit: float, low: float, factor: float, tolerance: float
) -> None:
    high = low * factor
    result = search(Ramp(SLO, low, high, tolerance), lambda rate: KEPT if rate <= limit else MISSED)
    if limit < low:
        assert (result.rate, result.missed_rate) == (None, low)
    elif limit >= high:
        assert (result.rate, result.missed_rate) == (high, None)
    else:
        assert result.rate is not None
        assert result.missed_rate is not None
        assert result.rate <= limit < result.missed_rate <= result.rate * (1 + tolerance) * (1 + 1e-9)
    assert result.is_clear
    # Doubling, then halving of the logarithm; two runs for each missed rate, and up to two for each end.
    assert result.runs <= 2 * (math.log2(factor) + math.log2(1 / math.log2(1 + tolerance)) + 6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["kept", "missed", "unclear"]), max_size=40))
def test_any_verdicts_come_to_an_end(verdicts: list[str]) -> None:
    summaries = {"kept": KEPT, "missed": MISSED, "unclear": UNCLEAR}
    left = list(verdicts)
    result = search(Ramp(SLO, 10, 1000), lambda _: summaries[left.pop() if left else "unclear"])
    assert result.rate is None or result.missed_rate is None or result.rate < result.missed_rate
    assert result.sentence


def test_an_unclear_rate_is_measured_again_and_its_runs_count_together() -> None:
    ramp = Ramp(SLO, 10, 10)
    # 100 requests show nothing about a p99; 400 do.
    for _ in range(4):
        assert ramp.next_rate() == 10
        ramp.observe(10, UNCLEAR)
    assert ramp.next_rate() is None
    assert ramp.result is not None
    assert ramp.result.rate == 10


def test_one_missed_run_does_not_end_the_growth() -> None:
    ramp = Ramp(SLO, 10, 20)
    for summary in (MISSED, KEPT, KEPT):
        assert ramp.next_rate() == 10
        ramp.observe(10, summary)
    assert ramp.next_rate() == 20


def test_a_missed_rate_that_is_not_confirmed_is_no_end() -> None:
    ramp = Ramp(SLO, 10, 20)
    for summary in (MISSED, MISSED, KEPT, KEPT, KEPT):
        assert ramp.next_rate() == 10
        ramp.observe(10, summary)
    assert ramp.next_rate() == 20


def test_a_kept_rate_that_is_not_confirmed_is_given_up() -> None:
    ramp = Ramp(SLO, 10, 10)
    for summary in (KEPT, *[MISSED] * 5):
        assert ramp.next_rate() == 10
        ramp.observe(10, summary)
    assert ramp.result is not None
    assert ramp.result.rate is None


@pytest.mark.parametrize(("low", "high", "tolerance"), [(0, 10, 0.1), (20, 10, 0.1), (1, math.inf, 0.1), (1, 2, 0)])
def test_bounds_that_make_no_search(low: float, high: float, tolerance: float) -> None:
    with pytest.raises(FlagError):
        Ramp(SLO, low, high, tolerance)


def rates_of(
    measure: Callable[[np.random.Generator, float], Run], seeds: range, low: float, high: float
) -> list[float]:
    rates = []
    for seed in seeds:
        random = np.random.default_rng(seed)
        result = search(Ramp(SLO, low, high), lambda rate, random=random: summarize(measure(random, rate)))
        assert result.rate is not None
        rates.append(result.rate)
    return rates


def test_the_limit_of_one_server_three_times() -> None:
    # The time in the system is exponential: its p99 is ln(100) / (capacity - rate).
    limit = 5000 - math.log(100) / 0.020
    rates = rates_of(lambda random, rate: one_server_queue(random, rate, 5000, 10), range(3), 1000, 100_000)
    assert max(rates) <= 1.05 * min(rates)
    assert rates == pytest.approx([limit] * 3, rel=0.05)


@pytest.mark.long
def test_the_limit_of_several_servers_three_times() -> None:
    limit = bisected(lambda rate: tail_of_several(rate, 4, 300.0, 0.020) - 0.01, 1.0, 1199.0)
    rates = rates_of(lambda random, rate: several_server_queue(random, rate, 4, 300.0, 30), range(3), 400, 10_000)
    assert max(rates) <= 1.05 * min(rates)
    assert rates == pytest.approx([limit] * 3, rel=0.05)


def test_the_limit_of_a_server_that_is_disturbed() -> None:
    """Its capacity changes by 1 % from run to run, and one run in ten has a pause of a second."""

    def measure(random: np.random.Generator, rate: float) -> Run:
        run = one_server_queue(random, rate, 5000 * random.normal(1, 0.01), 10)
        return paused(run, 4_000, 1_000) if random.random() < 0.1 else run

    limit = 5000 - math.log(100) / 0.020
    rates = rates_of(measure, range(3), 1000, 100_000)
    assert max(rates) <= 1.05 * min(rates)
    assert rates == pytest.approx([limit] * 3, rel=0.05)


def tail_of_several(rate: float, servers: int, each: float, seconds: float) -> float:
    """The chance that a request of M/M/c takes longer than ``seconds``."""
    load = rate / each
    waiting = load**servers / math.factorial(servers) / (1 - load / servers)
    waiting /= sum(load**k / math.factorial(k) for k in range(servers)) + waiting
    spare = servers - 1 - load
    served = math.exp(-each * seconds)
    return served * (1 + waiting / spare * -math.expm1(-each * seconds * spare))


def bisected(function: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return low


def test_a_limit_of_the_generator_is_not_reported_as_the_servers() -> None:
    ramp = Ramp(SLO, 100, 10_000)
    while (rate := ramp.next_rate()) is not None:
        said = "The generator was the bottleneck." if rate > 700 else None
        ramp.observe(rate, MISSED if rate > 700 else KEPT, said)
    result = ramp.result
    assert result is not None
    assert result.rate is not None
    assert result.generator == "The generator was the bottleneck."
    assert "not known" in result.sentence
    assert result.sentence.endswith(result.generator)


def test_a_busy_generator_that_keeps_the_slo_says_nothing_of_the_limit() -> None:
    ramp = Ramp(SLO, 100, 10_000)
    while (rate := ramp.next_rate()) is not None:
        ramp.observe(rate, MISSED if rate > 700 else KEPT, "busy" if rate < 700 else None)
    assert ramp.result is not None
    assert ramp.result.generator == ""
