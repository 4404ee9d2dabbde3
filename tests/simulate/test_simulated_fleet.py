"""Whole runs: no request is lost, results depend on the seed alone, all policies meet the same requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import outcome, run, scenario_of, total_of

from isochrone.simulate.experiment import run as experiment
from isochrone.simulate.scenario.records import PolicyChoice, capacity_per_second

WORKERS: list[dict[str, Any]] = [
    {"model": "fifo", "batch_ms": {1: 5.0, 4: 9.0}, "count": 2},
    {"model": "sharing", "cpu_ms": 5.0, "cores": 2},
    {"model": "exact", "batch_ms": {1: 5.0, 4: 9.0}, "levels": 2},
]
FAILURES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["stop", "stall", "slow", "errors"]),
        "at": st.floats(0, 1.5),
        "workers": st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True),
        "seconds": st.one_of(st.none(), st.floats(0.01, 1)),
    }
)


@given(
    rate=st.floats(10, 1200),
    cv=st.floats(0.5, 4),
    deadline=st.one_of(st.none(), st.floats(6, 300)),
    policy=st.sampled_from(["round_robin", "least_connections", "power_of_two", "peak_ewma", "prequal"]),
    gateways=st.fixed_dictionaries(
        {
            "count": st.integers(1, 3),
            "admission": st.booleans(),
            "retries": st.booleans(),
            "outliers": st.booleans(),
            "detection_ms": st.floats(0, 400),
        }
    ),
    failures=st.lists(FAILURES, max_size=3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_every_request_has_exactly_one_outcome(
    rate: float,
    cv: float,
    deadline: float | None,
    policy: str,
    gateways: dict[str, Any],
    failures: list[dict[str, Any]],
    seed: int,
) -> None:
    scenario = scenario_of(
        seconds=1.5,
        warmup_seconds=0.2,
        workload={"kind": "gamma", "rate": rate, "cv": cv},
        cost={"kind": "lognormal", "cv": 1},
        requests=[{"name": "high", "priority": 1, "deadline_ms": deadline}, {"name": "usual", "priority": 2}],
        workers=WORKERS,
        network={"one_way_ms": 0.1, "jitter_ms": 0.2},
        gateways=gateways,
        failures=failures,
    )
    fleet = run(scenario, policy, seed)
    total = total_of(fleet)
    for tally in (total, fleet.warmup):
        assert tally.settled == tally.offered
    assert total.latency.total == total.in_time + total.late
    for gateway in fleet.gateways:
        assert gateway.open == 0
        assert [replica.in_flight for replica in gateway.replicas] == [0] * 4
        assert [replica.endpoint.in_flight for replica in gateway.replicas] == [0] * 4


def test_workers_are_empty_when_everything_is_over() -> None:
    fleet = run(scenario_of(workers=WORKERS, workload={"kind": "poisson", "rate": 800}, seconds=3))
    assert [worker.in_flight for worker in fleet.workers] == [0, 0, 0, 0]
    assert sum(worker.answers for worker in fleet.workers) == total_of(fleet).in_time


def test_the_same_seed_gives_the_same_figures_and_another_seed_others() -> None:
    scenario = scenario_of(
        workers=WORKERS, network={"jitter_ms": 0.1}, gateways={"count": 2}, seconds=1, cost={"kind": "exponential"}
    )
    choices = [PolicyChoice(name="power_of_two"), PolicyChoice(name="prequal")]
    first = experiment(scenario, choices)
    assert experiment(scenario, choices) == first
    assert experiment(scenario_of(seed=2, seconds=1), choices)["policies"] != first["policies"]


def test_policies_meet_the_same_requests() -> None:
    scenario = scenario_of(cost={"kind": "exponential"}, workers=[{"model": "fifo", "batch_ms": {1: 1.0}, "count": 3}])
    one, other = run(scenario, "round_robin"), run(scenario, "random")
    assert total_of(one).offered == total_of(other).offered
    # The same work in total, whichever worker did it.
    used = [sum(worker.used for worker in fleet.workers) for fleet in (one, other)]
    assert used[0] == pytest.approx(used[1], rel=1e-6)


def test_warmup_is_not_counted() -> None:
    fleet = run(scenario_of(warmup_seconds=5))
    assert fleet.warmup.offered == pytest.approx(2500, rel=0.1)
    assert total_of(fleet).offered == pytest.approx(2500, rel=0.1)


def test_a_deadline_is_the_longest_anybody_waits() -> None:
    tally = outcome(workload={"kind": "poisson", "rate": 1500}, requests=[{"deadline_ms": 50}], seconds=5)
    assert tally.late > 0
    assert tally.latency.highest <= 50_000_000 + 1


def test_kinds_come_in_their_shares_and_are_told_apart() -> None:
    scenario = scenario_of(requests=[{"name": "a", "share": 3}, {"name": "b", "share": 1}])
    kinds = experiment(scenario, [PolicyChoice(name="round_robin")])["policies"][0]["kinds"]
    assert [row["kind"] for row in kinds] == ["a", "b"]
    assert kinds[0]["offered"] / kinds[1]["offered"] == pytest.approx(3, rel=0.1)


def test_agents_stay_with_their_worker_under_consistent_hashing() -> None:
    scenario = scenario_of(
        requests=[{"agents": 1}], workers=[{"model": "fifo", "batch_ms": {1: 0.1}, "count": 4}], seconds=2
    )
    fleet = run(scenario, "consistent_hash")
    answers = sorted(worker.answers for worker in fleet.workers)
    assert answers[-1] > 0.7 * sum(answers)


def test_capacity_adds_up_over_groups() -> None:
    scenario = scenario_of(
        workers=[
            {"model": "fifo", "batch_ms": {1: 1.0, 4: 2.0}, "count": 2, "instances": 3, "speed": 0.5},
            {"model": "sharing", "cpu_ms": 10, "cores": 4},
        ]
    )
    assert capacity_per_second(scenario) == pytest.approx(2 * 3 * 0.5 * 2000 + 400)


def test_weighted_round_robin_is_told_how_busy_workers_are() -> None:
    scenario = scenario_of(
        seconds=8,
        workload={"kind": "poisson", "rate": 900},
        workers=[
            {"model": "fifo", "batch_ms": {1: 1.0}},
            {"model": "fifo", "batch_ms": {1: 1.0}, "speed": 0.4},
        ],
    )
    fleet = run(scenario, "weighted_round_robin")
    fast, slow = (worker.answers for worker in fleet.workers)
    # Weights are queries per utilisation, so the fast one ends up with more, towards 2.5 times as much.
    assert fast > 1.6 * slow
