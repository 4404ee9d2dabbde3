"""Rates of answers: those of requests that were sent before the window make up for those that end after it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_runs import a_run

from isochrone.bench.analysis.bootstrap import Bootstrap
from isochrone.bench.analysis.summary import summarize
from isochrone.bench.results.outcomes import LATE, OK, Run, outcomes_from
from isochrone.clock import SECOND

RATE, SECONDS, WARMUP = 1000, 10.0, 10.0


def long_latencies(seed: int, mean_seconds: float, *, late: float = 0.0) -> Run:
    """Exponential latencies of a server that answers any number at once; some are late."""
    random = np.random.default_rng(seed)
    count = round(RATE * (SECONDS + WARMUP))
    intended = (np.arange(count) / RATE * SECOND - WARMUP * SECOND).astype(np.int64)
    ended = intended + (random.exponential(mean_seconds, count) * SECOND).astype(np.int64)
    outcome = np.where(random.random(count) < late, LATE, OK)
    measured = intended >= 0
    run = a_run(intended[measured], ended[measured], outcome=outcome[measured], rate=RATE, seconds=SECONDS)
    before = ~measured & (ended >= 0) & (ended < SECONDS * SECOND)
    columns = {
        "intended_ns": intended[before],
        "sent_ns": intended[before],
        "first_ns": np.full(int(before.sum()), -1),
        "ended_ns": ended[before],
        "outcome": outcome[before],
        "kind": np.zeros(int(before.sum())),
    }
    return replace(run, carried=outcomes_from(columns), warmup_seconds=WARMUP)


@pytest.mark.parametrize("mean_seconds", [0.001, 0.5, 2.0])
def test_long_latencies_do_not_lower_rates(mean_seconds: float) -> None:
    run = long_latencies(1, mean_seconds, late=0.25)
    total = summarize(run).total
    assert total.rate == pytest.approx(RATE, rel=0.02)
    assert total.goodput == pytest.approx(0.75 * RATE, rel=0.04)
    assert Bootstrap(run, 1).rate().value == pytest.approx(total.rate)
    # Latencies are those of the window's requests alone.
    assert total.total == RATE * SECONDS


def test_requests_of_the_warm_up_belong_to_their_kinds() -> None:
    run = long_latencies(2, 1.0)
    other = replace(run.carried, kind=np.ones(len(run.carried), dtype=np.uint16))
    first, second = summarize(replace(run, kinds=("a", "b"), carried=other)).kinds
    assert second.rate == pytest.approx(len(run.carried) / SECONDS)
    assert first.rate < RATE - second.rate / 2
