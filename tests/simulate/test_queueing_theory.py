"""The model against formulas that are known to be right, through the whole fleet: gateway, policy, worker, results.

Each bound is a few standard errors of the estimate at the fixed seed's length, so a wrong model fails by far.
"""

from __future__ import annotations

from math import factorial

import pytest
from scenarios import outcome

from isochrone.clock import MILLISECOND


def erlang_c(servers: int, load: float) -> float:
    """The chance to wait in M/M/c; ``load`` in servers' worth."""
    rho = load / servers
    waiting = load**servers / factorial(servers) / (1 - rho)
    return waiting / (sum(load**k / factorial(k) for k in range(servers)) + waiting)


def mean_ms(**parts: object) -> float:
    tally = outcome(**parts)  # type: ignore[arg-type]
    assert tally.offered == tally.in_time
    return tally.latency.mean / MILLISECOND


@pytest.mark.parametrize("rho", [0.3, 0.6])
def test_one_server_with_exponential_work(rho: float) -> None:
    found = mean_ms(
        seconds=50, warmup_seconds=2, workload={"kind": "poisson", "rate": 1000 * rho}, cost={"kind": "exponential"}
    )
    assert found == pytest.approx(1 / (1 - rho), rel=0.06)


def test_the_tail_of_one_server_is_exponential() -> None:
    tally = outcome(seconds=50, workload={"kind": "poisson", "rate": 500}, cost={"kind": "exponential"})
    # P(T > t) = exp(-(mu - lambda) t): the p99 is ln(100) / 500 s.
    assert tally.latency.percentile(0.99) / MILLISECOND == pytest.approx(9.21, rel=0.1)


def test_one_server_with_constant_work_waits_half_as_long() -> None:
    # Pollaczek and Khinchine: waiting is rho / (2 (1 - rho)) for constant work.
    found = mean_ms(seconds=50, workload={"kind": "poisson", "rate": 700})
    assert found == pytest.approx(1 + 0.7 / (2 * 0.3), rel=0.06)


@pytest.mark.parametrize(("servers", "load"), [(2, 1.4), (5, 4.0)])
def test_several_servers_with_one_queue(servers: int, load: float) -> None:
    found = mean_ms(
        seconds=10,
        warmup_seconds=1,
        workload={"kind": "poisson", "rate": 1000 * load},
        cost={"kind": "exponential"},
        workers=[{"model": "fifo", "batch_ms": {1: 1.0}, "instances": servers}],
    )
    assert found == pytest.approx(1 + erlang_c(servers, load) / (servers - load), rel=0.08)


@pytest.mark.parametrize(
    "cost",
    [{"kind": "constant"}, {"kind": "exponential"}, {"kind": "lognormal", "cv": 2}],
    ids=lambda cost: cost["kind"],
)
def test_processor_sharing_does_not_care_how_work_is_spread(cost: dict[str, object]) -> None:
    # Sakata et al.: the mean time in M/G/1 with processor sharing is E[S] / (1 - rho) whatever the distribution.
    found = mean_ms(
        seconds=50,
        warmup_seconds=2,
        workload={"kind": "poisson", "rate": 600},
        cost=cost,
        workers=[{"model": "sharing", "cpu_ms": 1.0}],
    )
    assert found == pytest.approx(1 / 0.4, rel=0.08)


def test_processor_sharing_on_several_cores_is_as_long_as_a_queue_before_them() -> None:
    # In number, M/M/c with sharing and M/M/c with a queue are the same chain, so their means agree (Little).
    found = mean_ms(
        seconds=12,
        warmup_seconds=1,
        workload={"kind": "poisson", "rate": 3200},
        cost={"kind": "exponential"},
        workers=[{"model": "sharing", "cpu_ms": 1.0, "cores": 4}],
    )
    assert found == pytest.approx(1 + erlang_c(4, 3.2) / (4 - 3.2), rel=0.08)


def test_speed_divides_the_time_and_the_network_adds_to_it() -> None:
    found = mean_ms(
        seconds=20,
        workload={"kind": "poisson", "rate": 1},
        workers=[{"model": "fifo", "batch_ms": {1: 10.0}, "speed": 2.0}],
        network={"one_way_ms": 0.5, "client_one_way_ms": 2.0},
    )
    assert found == pytest.approx(5 + 2 * 0.5 + 2 * 2.0, rel=0.02)


def test_round_robin_over_two_servers_smooths_their_arrivals() -> None:
    # Each server sees Erlang-2 arrivals: E2/M/1 with rho = 0.8 has sigma = 0.7566 and mean 1 / (mu (1 - sigma)).
    found = mean_ms(
        seconds=25,
        warmup_seconds=1,
        workload={"kind": "poisson", "rate": 1600},
        cost={"kind": "exponential"},
        workers=[{"model": "fifo", "batch_ms": {1: 1.0}, "count": 2}],
    )
    sigma = 0.5
    for _ in range(200):
        # The transform of Erlang-2 interarrivals (rate 1600) at 1000 (1 - sigma).
        sigma = (1600 / (1600 + 1000 * (1 - sigma))) ** 2
    assert found == pytest.approx(1 / (1 - sigma), rel=0.08)
