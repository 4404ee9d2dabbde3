"""Failures reach callers as in a real fleet: retries hide them, deadlines bound them, health checks end them."""

from __future__ import annotations

from typing import Any

import pytest
from scenarios import outcome, run, scenario_of, total_of

FOUR: dict[str, Any] = {
    "seconds": 6,
    "workload": {"kind": "poisson", "rate": 1000},
    "workers": [{"model": "fifo", "batch_ms": {1: 2.0}, "count": 4}],
    "network": {"one_way_ms": 0.1},
}


def test_without_retries_a_dead_worker_fails_what_it_had() -> None:
    failures = [{"kind": "stop", "at": 2, "seconds": 2, "workers": [0]}]
    tally = outcome(**FOUR, failures=failures)
    # The first loss makes the gateway check the process: what follows in the 300 ms of health checks goes elsewhere.
    assert 0 < tally.failed < 40
    assert tally.failed + tally.in_time == tally.offered


def test_retries_hide_a_dead_worker() -> None:
    failures = [{"kind": "stop", "at": 2, "seconds": 2, "workers": [0]}]
    tally = outcome(**FOUR, gateways={"retries": True, "outliers": False}, failures=failures)
    assert tally.failed == 0
    assert tally.retried > 5
    assert tally.in_time == tally.offered


def test_a_stalled_worker_keeps_its_callers_until_their_deadline_or_until_checks_see_it() -> None:
    failures = [{"kind": "stall", "at": 2, "seconds": 3, "workers": [0]}]
    slow_checks = {"retries": True, "outliers": False, "breakers": False, "detection_ms": 1000}
    bounded = outcome(**FOUR, requests=[{"deadline_ms": 100}], gateways=slow_checks, failures=failures)
    assert bounded.late == pytest.approx(250, abs=60)
    assert bounded.latency.highest <= 100_000_001
    patient = outcome(**FOUR, gateways={**slow_checks, "detection_ms": 300}, failures=failures)
    # Without deadlines: given up there after 300 ms and answered elsewhere.
    assert patient.failed == patient.late == 0
    assert 290_000_000 < patient.latency.highest < 600_000_000


def test_the_circuit_breaker_of_a_worker_that_fails_fast_opens() -> None:
    failures = [{"kind": "errors", "at": 1, "workers": [0]}]
    plain = outcome(**FOUR, gateways={"retries": False, "breakers": False}, failures=failures)
    guarded = outcome(**FOUR, gateways={"retries": False, "breakers": True}, failures=failures)
    assert plain.failed > 1000
    assert guarded.failed < 0.1 * plain.failed


def test_a_worker_that_is_back_gets_traffic_again() -> None:
    failures = [{"kind": "stop", "at": 1, "seconds": 1, "workers": [0]}]
    fleet = run(scenario_of(**{**FOUR, "seconds": 12}, failures=failures))
    others = [worker.answers for worker in fleet.workers[1:]]
    # Away for a twelfth, and five seconds of slow start.
    assert 0.5 * min(others) < fleet.workers[0].answers < min(others)


def test_a_slow_worker_hurts_round_robin_more_than_prequal() -> None:
    parts = {**FOUR, "failures": [{"kind": "slow", "at": 1, "workers": [3], "factor": 0.2}]}
    even = total_of(run(scenario_of(**parts), "round_robin"))
    aware = total_of(run(scenario_of(**parts), "prequal"))
    assert aware.latency.percentile(0.99) < 0.5 * even.latency.percentile(0.99)


def test_admission_refuses_what_no_worker_can_answer_in_time() -> None:
    overload: dict[str, Any] = {
        "seconds": 3,
        "workload": {"kind": "poisson", "rate": 3000},
        "workers": [{"model": "fifo", "batch_ms": {1: 2.0}, "count": 2}],
        "requests": [{"deadline_ms": 30}],
    }
    open_door = outcome("least_connections", **overload)
    guarded = outcome(
        "least_connections", **overload, gateways={"admission": True, "retries": False, "outliers": False}
    )
    assert open_door.rejected == 0
    assert guarded.rejected > 0.5 * guarded.offered
    assert guarded.in_time > 1.5 * open_door.in_time
    assert guarded.late < 0.05 * guarded.offered
