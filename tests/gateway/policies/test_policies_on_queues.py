"""Policies on a few queues: none that measures loses to round robin on equal workers, and all win with a slow one."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest
from policy_queues import MS, Outcome, Service, run, steady, stopping, varied

from isochrone.gateway import policies

SERVICE = 5 * MS
#: Those that look at what is in flight, and so at every worker's state.
LOOKING = ("least_connections", "power_of_two", "least_pending", "peak_ewma", "prequal")


def outcomes(
    name: str, services: list[Service], share: float, requests: int = 2500, told: bool = True
) -> list[Outcome]:
    per_second = share * len(services) * 1e9 / SERVICE
    return [run(policies.make(name, Random(s)), services, per_second, requests, s, told) for s in range(4)]


def p99(found: list[Outcome]) -> float:
    return mean(outcome.percentile(0.99) for outcome in found)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("service", [steady(SERVICE), varied(SERVICE)], ids=["steady", "varied"])
@pytest.mark.parametrize("share", [0.5, 0.8])
def test_prequal_does_not_lose_to_round_robin_on_four_equals(service: Service, share: float, told: bool) -> None:
    services = [service] * 4
    robin, prequal = (outcomes(name, services, share, told=told) for name in ("round_robin", "prequal"))
    assert p99(prequal) <= 1.05 * p99(robin)
    assert mean(o.mean() for o in prequal) <= 1.03 * mean(o.mean() for o in robin)


def test_prequal_shortens_the_tail_of_varied_requests_on_many_equals() -> None:
    services = [varied(SERVICE)] * 40
    assert p99(outcomes("prequal", services, 0.8)) < 0.8 * p99(outcomes("round_robin", services, 0.8))


@pytest.mark.parametrize("name", LOOKING)
def test_a_slow_worker_does_not_make_the_tail(name: str) -> None:
    services = [steady(SERVICE)] * 3 + [steady(10 * SERVICE)]
    found, robin = outcomes(name, services, 0.5), outcomes("round_robin", services, 0.5)
    assert p99(found) < 0.1 * p99(robin)


def test_prequal_sends_a_slow_worker_hardly_anything() -> None:
    services = [steady(SERVICE)] * 3 + [steady(10 * SERVICE)]
    found = outcomes("prequal", services, 0.5)
    assert p99(found) < 4 * SERVICE
    assert all(len(outcome.sent[3]) < 0.01 * 2500 for outcome in found)


@pytest.mark.parametrize("told", [True, False])
def test_prequal_sends_a_stopped_worker_next_to_nothing(told: bool) -> None:
    at = 3_000_000_000
    services = [steady(SERVICE)] * 3 + [stopping(steady(SERVICE), at)]
    for outcome in outcomes("prequal", services, 0.5, told=told):
        assert sum(sent > at for sent in outcome.sent[3]) <= 3
        assert outcome.percentile(0.99) < 5 * SERVICE


@pytest.mark.parametrize("name", ["token_bucket", "latency_weighted", "weighted_round_robin"])
def test_weights_take_most_of_the_load_off_a_slow_worker(name: str) -> None:
    services = [steady(SERVICE)] * 3 + [steady(10 * SERVICE)]
    for outcome in outcomes(name, services, 0.5):
        assert len(outcome.sent[3]) < 0.12 * 2500


@pytest.mark.parametrize("name", ["token_bucket", "latency_weighted", "weighted_round_robin"])
def test_weights_stay_even_among_equals(name: str) -> None:
    for outcome in outcomes(name, [varied(SERVICE)] * 4, 0.6):
        shares = [len(sent) / 2500 for sent in outcome.sent]
        assert min(shares) > 0.2
        assert max(shares) < 0.3
