"""Summaries against numpy's percentiles, and against queues whose latencies are known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_runs import a_run, latencies_run, one_server_queue

from isochrone.bench.analysis.distribution import Distribution
from isochrone.bench.analysis.summary import PERCENTILES, summarize
from isochrone.bench.results.outcomes import FAILED, LATE, OK, REJECTED, UNSENT
from isochrone.clock import MILLISECOND, SECOND


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300), st.sampled_from([0.1, *PERCENTILES, 99.99]))
def test_percentiles_are_numpys(values: list[int], percent: float) -> None:
    estimate = Distribution(np.array(values)).percentile(percent)
    assert estimate is not None
    assert estimate.value == np.percentile(values, percent, method="inverted_cdf")
    assert estimate.low <= estimate.value <= estimate.high


@given(
    st.lists(
        st.tuples(st.integers(0, 10**10), st.integers(0, 10**9), st.integers(0, 4), st.integers(0, 1)), max_size=80
    )
)
def test_kinds_and_outcomes_add_up(requests: list[tuple[int, int, int, int]]) -> None:
    intended, latency, outcome, kind = (
        (np.array(column, dtype=np.int64) for column in zip(*requests, strict=True))
        if requests
        else (np.empty(0, dtype=np.int64) for _ in range(4))
    )
    summary = summarize(a_run(intended, intended + latency, outcome=outcome, kind=kind, kinds=("a", "b")))
    total = summary.total
    assert sum(total.counts.values()) == total.total == len(requests)
    assert sum(part.total for part in summary.kinds) == len(requests)
    for name, count in total.counts.items():
        assert sum(part.counts[name] for part in summary.kinds) == count
    assert total.answered == total.counts["ok"] + total.counts["late"]
    assert total.errors.over == len(requests) - total.answered
    json.dumps(summary.as_json(), allow_nan=False)


def test_a_stall_counts_for_the_requests_that_it_kept_from_being_sent() -> None:
    # 1,000 requests a second for 10 s over one connection; the server answers in 0.1 ms, but stalls from 5 s to 6 s.
    intended = np.arange(10_000) * MILLISECOND
    sent, ended, free = [], [], 0
    for at in intended.tolist():
        start = max(at, free)
        sent.append(start)
        free = 6 * SECOND if 5 * SECOND <= start < 6 * SECOND else start + MILLISECOND // 10
        ended.append(free)
    summary = summarize(a_run(intended, ended, sent_ns=sent))
    ours, theirs = summary.total.latency.percentile(99), summary.total.latency_from_sending.percentile(99)
    assert ours is not None
    assert theirs is not None
    # Latencies of the requests in the stall, and in the catching up, fall from 1 s by 0.9 ms from one to the next. 100
    # are not below the p99.
    assert ours.value == pytest.approx(SECOND - 99 * 0.9 * MILLISECOND, rel=0.01)
    assert theirs.value == MILLISECOND // 10
    assert summary.total.latency_from_sending.highest == SECOND
    # One stall is one event: it proves no upper bound.
    assert ours.high == math.inf
    assert ours.low < 0.8 * SECOND


def test_the_p99_of_one_server_is_that_of_the_formula() -> None:
    run = one_server_queue(np.random.default_rng(5), rate=500, capacity=1000, seconds=200)
    estimate = summarize(run).total.latency.percentile(99)
    assert estimate is not None
    assert estimate.value == pytest.approx(np.log(100) / 500 * SECOND, rel=0.05)
    assert estimate.low <= np.log(100) / 500 * SECOND <= estimate.high


def test_the_rate_of_an_overloaded_server_is_its_capacity() -> None:
    # 2,000 requests a second for 10 s; one answer every millisecond: half of them come after the measured time.
    intended = np.arange(20_000) * (MILLISECOND // 2)
    summary = summarize(a_run(intended, np.arange(1, 20_001) * MILLISECOND, rate=2000))
    assert summary.total.rate == pytest.approx(1000, rel=0.001)
    assert summary.total.intended_rate == 2000


def test_a_long_latency_does_not_lower_the_rate() -> None:
    summary = summarize(latencies_run(np.full(10_000, SECOND)))
    assert summary.total.rate == pytest.approx(1000, rel=0.001)


def test_only_answers_have_latencies_and_only_those_in_time_are_goodput() -> None:
    outcome = np.array([OK, LATE, REJECTED, FAILED, UNSENT] * 200)
    latency = np.where(outcome == OK, 5, np.where(outcome == LATE, 50, 1)) * MILLISECOND
    first = np.where(outcome == OK, 2 * MILLISECOND, -1)
    run = latencies_run(latency, outcome=outcome)
    summary = summarize(
        a_run(
            run.outcomes.intended_ns,
            run.outcomes.ended_ns,
            outcome=outcome,
            first_ns=np.where(first >= 0, run.outcomes.intended_ns + first, -1),
        )
    )
    total = summary.total
    assert total.counts == {"ok": 200, "late": 200, "rejected": 200, "failed": 200, "unsent": 200}
    assert total.errors.share.value == 0.6
    assert total.rate == pytest.approx(40, rel=0.01)
    assert total.goodput == pytest.approx(20, rel=0.01)
    figures = summary.as_json()["total"]
    assert figures["latency_ms"]["p50"]["value"] == 5
    assert figures["latency_ms"]["max"] == 50
    assert figures["first_token_ms"]["p99"]["value"] == 2


def test_a_run_without_answers() -> None:
    summary = summarize(latencies_run([0, 0, 0], outcome=[FAILED] * 3))
    figures = summary.as_json()["total"]
    assert figures["latency_ms"] is None
    assert figures["rate"] == 0
    assert figures["error_share"]["value"] == 1


def test_too_few_requests_have_no_upper_bound() -> None:
    figures = summarize(latencies_run([MILLISECOND] * 100)).as_json()["total"]["latency_ms"]
    assert figures["p50"]["high"] == 1
    assert figures["p99"]["high"] is None
