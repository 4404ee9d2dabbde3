"""When the generator limited a run, one sentence says so and what to change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_runs import latencies_run

from isochrone.bench.analysis.bottleneck import generator_limit, generator_verdict, stalled_requests
from isochrone.bench.analysis.durations import shown_ns
from isochrone.bench.results.outcomes import OK, UNSENT, GeneratorUse
from isochrone.clock import MILLISECOND

LATENCIES = np.full(1_000, 5 * MILLISECOND)
IDLE = GeneratorUse(0.3, 10_000, 100_000, 400_000)


def test_an_idle_generator_is_no_bottleneck() -> None:
    assert generator_verdict(latencies_run(LATENCIES, generators=(IDLE, IDLE))) is None
    assert generator_verdict(latencies_run(LATENCIES, generators=())) is None


def test_one_busy_process_of_several() -> None:
    verdict = generator_verdict(latencies_run(LATENCIES, generators=(IDLE, GeneratorUse(0.97, 0, 0, 0))))
    assert verdict is not None
    assert "97%" in verdict
    assert "--processes above 2" in verdict
    assert "--rate" in verdict


def test_a_busy_process_of_a_closed_loop() -> None:
    busy = (GeneratorUse(1.0, 0, 0, 0),)
    verdict = generator_verdict(latencies_run(LATENCIES, generators=busy, rate=None, in_flight=64))
    assert verdict is not None
    assert "in flight" in verdict


@pytest.mark.parametrize(("lag_ms", "is_named"), [(0.1, False), (0.4, False), (0.6, True), (50, True)])
def test_a_lag_is_measured_by_the_latency(lag_ms: float, is_named: bool) -> None:
    lag = int(lag_ms * MILLISECOND)
    verdict = generator_verdict(latencies_run(LATENCIES, generators=(GeneratorUse(0.3, 0, lag, lag),)))
    assert (verdict is not None) == is_named
    assert verdict is None or shown_ns(lag) in verdict


def test_unsent_requests_of_a_late_generator_are_its_fault_and_those_of_a_silent_server_are_not() -> None:
    outcome = np.where(np.arange(1_000) % 100 == 0, UNSENT, OK)
    sent = np.where(outcome == UNSENT, 10_000 * MILLISECOND, 0)
    given = latencies_run(LATENCIES, outcome=outcome)
    columns = replace(given.outcomes, sent_ns=given.outcomes.intended_ns + sent)
    late = GeneratorUse(0.3, 10_000, 100_000, 9_000 * MILLISECOND)
    verdict = generator_verdict(replace(given, outcomes=columns, generators=(late,)))
    assert verdict is not None
    assert "10 of 1,000" in verdict
    assert generator_verdict(replace(given, outcomes=columns, generators=(IDLE,))) is None


@pytest.mark.parametrize(("stall_ms", "requests"), [(50, 6), (5_000, 501)])
def test_a_generator_that_stood_still_is_named_with_its_requests(stall_ms: int, requests: int) -> None:
    """1,000 requests in 10 s: as many as were under way in the stall hold its time."""
    stalls = ((2_000 * MILLISECOND, (2_000 + stall_ms) * MILLISECOND),)
    run = replace(latencies_run(LATENCIES, generators=(IDLE,)), stalls=stalls)
    limit = generator_limit(run)
    assert limit is not None
    assert limit.is_certain is (requests >= 10)
    assert f"the latencies of {stalled_requests(run):,} requests" in limit.sentence
    assert abs(stalled_requests(run) - requests) <= 1
    assert "it was stopped" in limit.sentence


@given(st.floats(0, 1e18))
def test_durations_have_at_most_three_digits_below_a_thousand_seconds(duration: float) -> None:
    text, unit = shown_ns(duration).split()
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert float(text.replace(",", "")) * scale == pytest.approx(duration, rel=0.0051, abs=0.51)
    assert len(text.replace(".", "")) <= 3 or duration >= 999.5e9


def test_durations_as_people_read_them() -> None:
    assert [shown_ns(value) for value in (0, 999, 999.6, 12_345_678, 999_999_999, 61e9, float("inf"))] == [
        "0 ns",
        "999 ns",
        "1.00 µs",
        "12.3 ms",
        "1.00 s",
        "61.0 s",
        "∞",
    ]
