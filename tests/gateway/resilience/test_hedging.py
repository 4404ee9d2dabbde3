"""Hedging: after the model's p95, within its budget, never for what must run once and never on a busy fleet."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import NEVER
from isochrone.gateway.replicas import Endpoint, LoadReport, Replica
from isochrone.gateway.resilience.hedging import HedgeRules, Hedging
from isochrone.gateway.resilience.latency_quantile import LatencyQuantile
from isochrone.gateway.resilience.retry_budget import Kind

MS = 1_000_000
SECOND = 1_000 * MS
ON = HedgeRules(enabled=True)


def fleet_of(count: int, queue: int = 0, now: int = SECOND) -> list[Replica]:
    fleet = [Replica(Endpoint(f"worker{number}:8000")) for number in range(count)]
    for replica in fleet:
        replica.reported(LoadReport(queue, queue), now)
    return fleet


def warm(rules: HedgeRules = ON, sent: int = 1_000) -> Hedging:
    """Latencies of 1 to 100 ms were seen, evenly."""
    hedging = Hedging(rules, Random(7))
    for number in range(sent):
        hedging.sent(1, SECOND)
        hedging.ended((number % 100 + 1) * MS)
    return hedging


@given(
    quantile=st.sampled_from([0.5, 0.9, 0.95, 0.99]),
    values=st.lists(st.integers(0, 1 << 42) | st.integers(0, 50) | st.integers(10**6, 10**7), min_size=1, max_size=400),
)
def test_the_quantile_is_never_below_the_true_one_and_at_most_an_eighth_above(
    quantile: float, values: list[int]
) -> None:
    estimator = LatencyQuantile(quantile)
    for count, value in enumerate(values, 1):
        estimator.add(value)
        ordered = sorted(values[:count])
        rank = next(rank for rank in range(1, count + 1) if rank >= quantile * count)
        true = min(ordered[rank - 1], (1 << 41) - 1)
        assert true <= estimator.value() <= true * 1.125 + 1
    assert estimator.count == len(values)


def test_the_quantile_follows_a_change() -> None:
    estimator = LatencyQuantile(0.95)
    for _ in range(20_000):
        estimator.add(100 * MS)
    for _ in range(20_000):
        estimator.add(5 * MS)
    assert 5 * MS <= estimator.value() <= 5 * MS * 1.125
    assert estimator.count < 4_096


def test_the_delay_is_the_p95() -> None:
    delay = warm().delay_ns(Kind.STATELESS, NEVER, SECOND)
    assert delay is not None
    assert 95 * MS <= delay <= 95 * MS * 1.125


@pytest.mark.parametrize("kind", [Kind.SEQUENCE, Kind.STREAM])
def test_requests_that_must_run_once_are_never_hedged(kind: Kind) -> None:
    assert warm().delay_ns(kind, NEVER, SECOND) is None


def test_no_delay_when_off_or_unknown_or_past_the_deadline() -> None:
    assert warm(HedgeRules(enabled=False)).delay_ns(Kind.STATELESS, NEVER, SECOND) is None
    assert warm(sent=99).delay_ns(Kind.STATELESS, NEVER, SECOND) is None
    assert warm().delay_ns(Kind.STATELESS, SECOND + 90 * MS, SECOND) is None


def test_the_delay_has_a_floor() -> None:
    hedging = Hedging(ON, Random(7))
    for _ in range(200):
        hedging.ended(10_000)
    assert hedging.delay_ns(Kind.STATELESS, NEVER, SECOND) == ON.least_delay_ns


def test_copies_stay_within_their_share() -> None:
    hedging, fleet = warm(), fleet_of(4)
    assert sum(hedging.may_send(fleet, fleet[1], SECOND) for _ in range(1_000)) == 50


def test_a_busy_fleet_gets_no_copies_even_for_an_idle_worker() -> None:
    hedging = warm()
    idle = fleet_of(1)
    assert not hedging.may_send(fleet_of(3, queue=2) + idle, idle[0], SECOND)
    assert hedging.may_send(fleet_of(1, queue=2) + fleet_of(3), idle[0], SECOND)


def test_a_busy_worker_gets_no_copy_even_in_an_idle_fleet() -> None:
    hedging, fleet = warm(), fleet_of(8)
    fleet[0].reported(LoadReport(3, 1), SECOND)
    for _ in range(ON.busy_in_flight + 1):
        fleet[1].sent()
    assert not hedging.may_send(fleet, fleet[0], SECOND)
    assert not hedging.may_send(fleet, fleet[1], SECOND)
    assert hedging.may_send(fleet, fleet[2], SECOND)


def test_workers_without_reports_are_busy_by_requests_in_flight() -> None:
    hedging = warm()
    silent = [Replica(Endpoint(f"triton{number}:8000")) for number in range(2)]
    assert hedging.may_send(silent, silent[1], SECOND)
    for _ in range(ON.busy_in_flight):
        silent[1].sent()
    assert not hedging.may_send(silent, silent[1], SECOND)
