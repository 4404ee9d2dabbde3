"""The policies without memory: round robin, random, power of two; and least connections."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from policy_queues import fleet

from isochrone.gateway import policies
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import Replica


def choices(name: str, replicas: list[Replica], count: int) -> list[int]:
    policy = policies.make(name, Random(11))
    policy.replicas_changed(replicas)
    return [replicas.index(policy.choose(Demand(), 1)) for _ in range(count)]


def test_round_robin_takes_every_replica_in_turn() -> None:
    chosen = choices("round_robin", fleet(5), 25)
    begin = chosen[0]
    assert chosen == [(begin + step) % 5 for step in range(25)]


def test_gateways_do_not_walk_in_step() -> None:
    replicas = fleet(10)
    firsts = set()
    for seed in range(40):
        policy = policies.make("round_robin", Random(seed))
        policy.replicas_changed(replicas)
        firsts.add(policy.choose(Demand(), 1))
    assert len(firsts) > 5


def test_round_robin_keeps_its_place_when_members_change() -> None:
    replicas = fleet(6)
    policy = policies.make("round_robin", Random(0))
    policy.replicas_changed(replicas)
    while policy.choose(Demand(), 1) is not replicas[2]:
        pass
    policy.replicas_changed(replicas[:5])
    assert policy.choose(Demand(), 1) is replicas[3]


def test_random_gives_every_replica_the_same_chance() -> None:
    counts = Counter(choices("random", fleet(10), 10_000))
    # Binomial, σ = 30: five of them.
    assert all(850 < counts[slot] < 1150 for slot in range(10))


def test_of_two_the_less_busy_is_taken() -> None:
    replicas = fleet(2)
    replicas[0].in_flight = 3
    assert set(choices("power_of_two", replicas, 50)) == {1}


def test_power_of_two_never_takes_the_busiest_of_many() -> None:
    replicas = fleet(20)
    for number, replica in enumerate(replicas):
        replica.in_flight = number
    counts = Counter(choices("power_of_two", replicas, 20_000))
    assert counts[19] == 0
    # The least busy is in 2/20 of the pairs, and wins each.
    assert counts[0] / 20_000 == pytest.approx(0.1, abs=0.01)
    assert counts[10] / 20_000 == pytest.approx(2 * 9 / (20 * 19), abs=0.008)


def test_power_of_two_keeps_loads_closer_than_random() -> None:
    spreads = {}
    for name in ("random", "power_of_two"):
        replicas = fleet(50)
        policy = policies.make(name, Random(3))
        policy.replicas_changed(replicas)
        for _ in range(5000):
            policy.choose(Demand(), 1).sent()
        spreads[name] = max(replica.in_flight for replica in replicas) - 100
    # ln ln n against √: a handful against some thirty.
    assert spreads["power_of_two"] <= 4 < spreads["random"]


@pytest.mark.parametrize("size", [5, 100])
def test_least_connections_fills_up_evenly_and_in_turn(size: int) -> None:
    replicas = fleet(size)
    policy = policies.make("least_connections", Random(4))
    policy.replicas_changed(replicas)
    for _ in range(3 * size):
        replica = policy.choose(Demand(), 1)
        replica.sent()
        policy.sent(replica, 1)
    assert {replica.in_flight for replica in replicas} == {3}
    freed = replicas[size // 2]
    freed.ended(3, 1000, False, 2)
    policy.ended(freed, 1000, False, 2)
    assert policy.choose(Demand(), 3) is freed


def test_idle_workers_take_turns() -> None:
    replicas = fleet(8)
    policy = policies.make("least_connections", Random(5))
    policy.replicas_changed(replicas)
    chosen = []
    for now in range(1, 65):
        replica = policy.choose(Demand(), now)
        load = replica.sent()
        policy.sent(replica, now)
        replica.ended(load, 1000, False, now)
        policy.ended(replica, 1000, False, now)
        chosen.append(replica)
    assert all(set(chosen[begin : begin + 8]) == set(replicas) for begin in range(0, 64, 8))


def test_a_drop_without_an_event_is_noticed() -> None:
    replicas = fleet(4)
    policy = policies.make("least_connections", Random(6))
    policy.replicas_changed(replicas)
    for _ in range(8):
        replica = policy.choose(Demand(), 1)
        replica.sent()
        policy.sent(replica, 1)
    replicas[1].dropped()
    chosen = [policy.choose(Demand(), 2) for _ in range(8)]
    assert replicas[1] in chosen
