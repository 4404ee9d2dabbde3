"""Buckets that empty, refill with time and with the worker's queue, and what happens when all are empty."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from policy_queues import MS, fleet

from isochrone.errors import QueueFull
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.token_bucket import TokenBucket
from isochrone.gateway.replicas import LoadReport

SECOND = 1_000_000_000


def test_a_bucket_is_worth_its_burst_and_then_nothing() -> None:
    policy, replicas = TokenBucket(Random(1), burst_s=0.1, rate=100, when_empty="refuse"), fleet(2)
    policy.replicas_changed(replicas)
    taken: Counter[int] = Counter()
    # At 100 a second, 0.1 s: ten tokens each, and one that leaves the bucket worth nothing.
    for _ in range(22):
        taken[replicas.index(policy.choose(Demand(), SECOND))] += 1
    assert taken == {0: 11, 1: 11}
    with pytest.raises(QueueFull, match="token_bucket"):
        policy.choose(Demand(), SECOND)
    assert policy.empty == 1
    # A token takes 10 ms.
    assert {policy.choose(Demand(), SECOND + 21 * MS) for _ in range(2)} == set(replicas)


def test_over_time_no_more_goes_than_is_refilled() -> None:
    policy, replicas = TokenBucket(Random(1), burst_s=0.1, rate=100, when_empty="refuse"), fleet(1)
    policy.replicas_changed(replicas)
    taken = 0
    for step in range(10_000):
        try:
            policy.choose(Demand(), SECOND + step * MS // 2)
            taken += 1
        except QueueFull:
            pass
    # 5 s at 100 a second and the burst of 10.
    assert 495 <= taken <= 515


def test_a_large_request_takes_as_many_tokens_as_it_has_rows() -> None:
    policy, replicas = TokenBucket(Random(1), burst_s=1.0, rate=100), fleet(2)
    policy.replicas_changed(replicas)
    first = policy.choose(Demand(rows=50), SECOND)
    others = [policy.choose(Demand(rows=1), SECOND + 1) for _ in range(49)]
    assert first not in others


def test_all_empty_means_the_least_loaded() -> None:
    policy, replicas = TokenBucket(Random(1), burst_s=0.001, rate=1), fleet(3)
    replicas[0].in_flight, replicas[1].in_flight, replicas[2].in_flight = 3, 1, 2
    policy.replicas_changed(replicas)
    for _ in range(3):
        policy.choose(Demand(), SECOND)
    assert policy.empty == 0
    assert policy.choose(Demand(), SECOND) is replicas[1]
    assert policy.empty == 1


def test_refill_follows_the_queue_the_worker_tells_of() -> None:
    policy, replicas = TokenBucket(Random(1), rate=1000, queue=2), fleet(2)
    policy.replicas_changed(replicas)
    now = SECOND
    for _ in range(100):
        now += 10 * MS
        for _ in range(40):
            policy.choose(Demand(), now)
        replicas[0].reported(LoadReport(1, 0), now)
        replicas[1].reported(LoadReport(9, 8), now)
        for replica in replicas:
            policy.reported(replica, now)
    assert policy._rates[0] * 1e9 > 2000
    assert policy._rates[1] * 1e9 < 100


def test_a_full_bucket_does_not_grow_further() -> None:
    policy, replicas = TokenBucket(Random(1), rate=1000), fleet(1)
    policy.replicas_changed(replicas)
    policy.choose(Demand(), SECOND)
    for step in range(1, 100):
        now = SECOND + step * SECOND
        replicas[0].reported(LoadReport(0, 0), now)
        policy.reported(replicas[0], now)
    assert policy._rates[0] * 1e9 == pytest.approx(1000)


def test_a_worker_that_answers_nothing_is_refilled_less_and_less() -> None:
    policy, replicas = TokenBucket(Random(1)), fleet(2)
    policy.replicas_changed(replicas)
    sent = [0, 0]
    for step in range(400):
        now = SECOND + step * 10 * MS
        replica = policy.choose(Demand(), now)
        slot = replicas.index(replica)
        load = replica.sent()
        policy.sent(replica, now)
        sent[slot] += 1
        if slot == 0:
            replica.ended(load, 5 * MS, False, now)
            policy.ended(replica, 5 * MS, False, now)
    assert sent[1] < 0.15 * sent[0]


def test_a_bucket_keeps_its_tokens_when_replicas_change() -> None:
    policy, replicas = TokenBucket(Random(1), burst_s=0.01, rate=100, when_empty="refuse"), fleet(3)
    policy.replicas_changed(replicas[:2])
    for _ in range(2):
        policy.choose(Demand(rows=100), SECOND)
    policy.replicas_changed(replicas)
    # The new replica has no more tokens than they have.
    with pytest.raises(QueueFull):
        policy.choose(Demand(), SECOND)
    policy.replicas_changed(replicas[2:])
    with pytest.raises(QueueFull):
        policy.choose(Demand(), SECOND)
