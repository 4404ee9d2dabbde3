"""The policies that measure: least pending, peak EWMA, latency weights, weighted round robin."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from policy_queues import MS, fleet

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.least_pending import LeastPending
from isochrone.gateway.policies.peak_ewma import PeakEwma
from isochrone.gateway.policies.weighted.latency_weighted import LatencyWeighted
from isochrone.gateway.policies.weighted.weighted_round_robin import WeightedRoundRobin
from isochrone.gateway.replicas import FRESH_NS, LoadReport, Replica

SECOND = 1_000_000_000


def serve(policy: Policy, replica: Replica, latency_ns: int, now: int, failed: bool = False) -> None:
    """One request to a replica and back."""
    load = replica.sent()
    policy.sent(replica, now - latency_ns)
    replica.ended(load, latency_ns, failed, now)
    policy.ended(replica, latency_ns, failed, now)


def taken(policy: Policy, replicas: list[Replica], count: int, now: int) -> Counter[int]:
    return Counter(replicas.index(policy.choose(Demand(), now)) for _ in range(count))


def test_least_pending_weighs_pending_requests_by_speed() -> None:
    policy, replicas = LeastPending(Random(1)), fleet(2)
    policy.replicas_changed(replicas)
    for step in range(200):
        serve(policy, replicas[0], 10 * MS, SECOND + step * 20 * MS)
        serve(policy, replicas[1], 40 * MS, SECOND + step * 20 * MS)
    now = 6 * SECOND
    assert policy.seconds_each(replicas[1]) / policy.seconds_each(replicas[0]) == pytest.approx(4, rel=0.3)
    for waiting in (0, 1, 2):
        replicas[0].in_flight = waiting
        policy.dropped(replicas[0], now, now)
        # Up to three requests of 10 ms are done sooner than one of 40.
        assert policy.choose(Demand(), now) is replicas[0]
    replicas[0].in_flight = 5
    policy.dropped(replicas[0], now, now)
    assert policy.choose(Demand(), now) is replicas[1]


def test_least_pending_counts_requests_of_other_gateways() -> None:
    policy, replicas = LeastPending(Random(1)), fleet(2)
    policy.replicas_changed(replicas)
    replicas[0].reported(LoadReport(9, 8), SECOND)
    policy.reported(replicas[0], SECOND)
    assert set(taken(policy, replicas, 10, SECOND)) == {1}
    # Old news is no news.
    assert 0 in taken(policy, replicas, 10, SECOND + 2 * FRESH_NS)


def test_one_lucky_answer_does_not_make_a_worker_fast() -> None:
    policy, replicas = LeastPending(Random(1)), fleet(2)
    policy.replicas_changed(replicas)
    for step in range(100):
        serve(policy, replicas[0], 10 * MS, SECOND + step)
    serve(policy, replicas[1], MS // 10, 2 * SECOND)
    assert policy.seconds_each(replicas[1]) > 0.5 * policy.seconds_each(replicas[0])


def test_least_pending_avoids_a_replica_that_fails_fast() -> None:
    policy, replicas = LeastPending(Random(1)), fleet(2)
    policy.replicas_changed(replicas)
    for step in range(100):
        serve(policy, replicas[0], 10 * MS, SECOND + step)
        serve(policy, replicas[1], MS, SECOND + step, failed=True)
    assert set(taken(policy, replicas, 10, 2 * SECOND)) == {0}


def test_a_peak_is_believed_at_once_and_forgotten_slowly() -> None:
    policy, replicas = PeakEwma(Random(1), decay_s=1.0), fleet(2)
    policy.replicas_changed(replicas)
    for step in range(50):
        for replica in replicas:
            serve(policy, replica, 10 * MS, SECOND + step * MS)
    serve(policy, replicas[0], 100 * MS, 2 * SECOND)
    assert set(taken(policy, replicas, 20, 2 * SECOND)) == {1}
    serve(policy, replicas[0], 10 * MS, 2 * SECOND + MS)
    assert set(taken(policy, replicas, 20, 2 * SECOND + MS)) == {1}
    for step in range(50):
        for replica in replicas:
            serve(policy, replica, 10 * MS, 2 * SECOND + (step + 1) * 200 * MS)
    # Ten time constants later nothing is left of the peak.
    costs = [policy._cost(replica, 12 * SECOND) for replica in replicas]
    assert costs[0] == pytest.approx(costs[1], rel=0.01)


def test_peak_ewma_multiplies_by_requests_in_flight() -> None:
    policy, replicas = PeakEwma(Random(1)), fleet(2)
    policy.replicas_changed(replicas)
    for replica, latency in zip(replicas, (10 * MS, 25 * MS), strict=True):
        serve(policy, replica, latency, SECOND)
    replicas[0].in_flight = 1
    assert set(taken(policy, replicas, 10, SECOND)) == {0}
    replicas[0].in_flight = 2
    assert set(taken(policy, replicas, 10, SECOND)) == {1}


def test_peak_ewma_tries_a_new_replica_once_until_it_answers() -> None:
    policy, replicas = PeakEwma(Random(1)), fleet(2)
    policy.replicas_changed(replicas)
    serve(policy, replicas[0], 10 * MS, SECOND)
    assert set(taken(policy, replicas, 10, SECOND)) == {1}
    replicas[1].sent()
    assert set(taken(policy, replicas, 10, SECOND)) == {0}


def test_a_slow_p95_means_a_small_weight_and_the_floor_holds() -> None:
    policy, replicas = LatencyWeighted(Random(1), floor=0.1), fleet(4)
    policy.replicas_changed(replicas)
    for step in range(1500):
        for replica in replicas[:3]:
            serve(policy, replica, 10 * MS, SECOND + step * MS)
        serve(policy, replicas[3], 10_000 * MS, SECOND + step * MS)
    assert policy.weight(replicas[3]) == pytest.approx(0.1)
    counts = taken(policy, replicas, 3100, 4 * SECOND)
    share = 0.1 / (0.1 + sum(policy.weight(replica) for replica in replicas[:3]))
    assert counts[3] / 3100 == pytest.approx(share, rel=0.05)
    assert max(counts[slot] for slot in range(3)) < 1.05 * min(counts[slot] for slot in range(3))


def test_the_p95_is_followed_up_and_down() -> None:
    policy, replicas = LatencyWeighted(Random(1)), fleet(1)
    policy.replicas_changed(replicas)
    random = Random(7)
    for mean in (10 * MS, 40 * MS, 5 * MS):
        for step in range(6000):
            serve(policy, replicas[0], int(mean * random.random()) + 1, SECOND + step)
        # Of a uniform distribution: 0.95 of its end.
        assert policy._p95[replicas[0]] == pytest.approx(0.95 * mean, rel=0.12)


def test_a_worker_that_is_well_again_gets_its_share_back() -> None:
    policy, replicas = LatencyWeighted(Random(1)), fleet(2)
    policy.replicas_changed(replicas)
    for latency in (100 * MS, 10 * MS):
        for step in range(3000):
            serve(policy, replicas[0], 10 * MS, SECOND + step)
            serve(policy, replicas[1], latency, SECOND + step)
        if latency == 100 * MS:
            assert policy.weight(replicas[1]) < 0.5 * policy.weight(replicas[0])
    assert policy.weight(replicas[1]) == pytest.approx(policy.weight(replicas[0]), rel=0.05)


def weigh(
    policy: WeightedRoundRobin, replicas: list[Replica], uses: list[float], seconds: int, failing: int = -1
) -> None:
    """Every replica answers 100 times a second, at the utilisation that it reports."""
    for step in range(seconds * 100):
        now = SECOND + step * 10 * MS
        for slot, (replica, use) in enumerate(zip(replicas, uses, strict=True)):
            serve(policy, replica, MS, now, failed=slot == failing)
            policy.utilised(replica, use)


def test_weights_are_goodput_over_utilisation() -> None:
    policy, replicas = WeightedRoundRobin(Random(1)), fleet(3)
    policy.replicas_changed(replicas)
    weigh(policy, replicas, [0.2, 0.4, 0.8], 20)
    counts = taken(policy, replicas, 7000, 30 * SECOND)
    assert [counts[slot] / 1000 for slot in range(3)] == pytest.approx([4, 2, 1], rel=0.02)


def test_errors_count_as_use() -> None:
    policy, replicas = WeightedRoundRobin(Random(1)), fleet(2)
    policy.replicas_changed(replicas)
    weigh(policy, replicas, [0.5, 0.5], 10, failing=1)
    counts = taken(policy, replicas, 1000, 30 * SECOND)
    assert counts[1] < 10


def test_without_reports_busy_time_is_utilisation() -> None:
    policy, replicas = WeightedRoundRobin(Random(1)), fleet(2)
    policy.replicas_changed(replicas)
    for step in range(2000):
        # As many answers from both; the second takes three times as long for each.
        serve(policy, replicas[0], MS, SECOND + step * 10 * MS)
        serve(policy, replicas[1], 3 * MS, SECOND + step * 10 * MS)
    counts = taken(policy, replicas, 4000, 30 * SECOND)
    assert counts[0] / counts[1] == pytest.approx(3, rel=0.05)


def test_a_new_replica_gets_a_mean_share() -> None:
    policy, replicas = WeightedRoundRobin(Random(1)), fleet(4)
    policy.replicas_changed(replicas[:3])
    weigh(policy, replicas[:3], [0.4, 0.4, 0.4], 5)
    policy.replicas_changed(replicas)
    counts = taken(policy, replicas, 4000, 30 * SECOND)
    assert all(900 < counts[slot] < 1100 for slot in range(4))


def test_turns_are_smooth() -> None:
    policy, replicas = WeightedRoundRobin(Random(1)), fleet(3)
    policy.replicas_changed(replicas)
    weigh(policy, replicas, [0.1, 0.2, 0.2], 20)
    chosen = [replicas.index(policy.choose(Demand(), 30 * SECOND)) for _ in range(400)]
    # A half, a quarter, a quarter: never two in a row to a light one, nor three to the heavy one.
    assert all(chosen[step] != chosen[step + 1] or chosen[step] == 0 for step in range(399))
    assert all(chosen[step : step + 4] != [0, 0, 0, 0] for step in range(397))
