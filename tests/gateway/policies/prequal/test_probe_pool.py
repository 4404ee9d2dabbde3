"""Prequal's rules over its pool, one by one, as the paper has them."""

from __future__ import annotations

from random import Random

import pytest
from policy_queues import MS, fleet

from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.prequal.policy import Prequal
from isochrone.gateway.policies.prequal.probe_pool import ProbePool, reuse
from isochrone.gateway.replicas import LoadReport, Replica

SECOND = 1_000_000_000


def pool(
    probes: list[tuple[int, int]], quantile: float = 0.84, tolerance: float = 1.0, uses: float = 1.0
) -> tuple[ProbePool, list[Replica]]:
    """A pool of (in flight, latency) in the order they came, one ns apart."""
    made = ProbePool(Random(1), 16, SECOND, quantile, 1.0, tolerance)
    made.uses = uses
    replicas = fleet(len(probes))
    for number, (replica, (in_flight, latency)) in enumerate(zip(replicas, probes, strict=True)):
        made.add(replica, in_flight, latency, number)
    return made, replicas


def best(made: ProbePool, replicas: list[Replica], *avoid: int) -> int:
    probe = made.best([replicas[slot] for slot in avoid])
    assert probe is not None
    return replicas.index(probe.replica)


def test_of_the_cold_ones_the_quickest() -> None:
    made, replicas = pool([(1, 30), (2, 20), (3, 25), (2, 40), (3, 28), (9, 5), (2, 50)])
    assert made.hot_above == 3
    # The quickest of all is hot.
    assert best(made, replicas) == 1


def test_all_hot_the_one_with_the_fewest_in_flight() -> None:
    made, replicas = pool([(1, 10)] * 10, uses=9)
    for probe in list(made.probes):
        for _ in range(3 if probe.replica is replicas[4] else 5):
            made.use(probe)
    assert all(probe.in_flight > made.hot_above for probe in made.probes)
    assert best(made, replicas) == 4


def test_quantile_zero_goes_by_requests_in_flight_and_one_by_latency() -> None:
    probes = [(3, 30), (1, 90), (2, 60), (9, 5)]
    assert best(*pool(probes, quantile=0.0)) == 1
    assert best(*pool(probes, quantile=1.0)) == 3


@pytest.mark.parametrize(("quantile", "limit"), [(0.0, 1), (0.5, 5), (0.84, 8), (1.0, 10)])
def test_hot_is_above_the_quantile_of_recent_probes(quantile: float, limit: int) -> None:
    made, _ = pool([(in_flight, 10) for in_flight in (5, 1, 9, 3, 7, 2, 8, 4, 10, 6)], quantile)
    assert made.hot_above == limit


def test_the_distribution_forgets() -> None:
    made, replicas = pool([(100, 10)] * 10)
    for number in range(64):
        made.add(replicas[number % 10], 2, 10, SECOND)
    assert made.hot_above == 2


def test_latencies_within_the_tolerance_are_equal() -> None:
    probes = [(3, 10), (2, 18), (1, 25)]
    assert best(*pool(probes, quantile=1.0, tolerance=1.0)) == 0
    assert best(*pool(probes, quantile=1.0, tolerance=2.0)) == 1
    assert best(*pool(probes, quantile=1.0, tolerance=3.0)) == 2


def test_avoided_ones_are_left_out() -> None:
    made, replicas = pool([(1, 10), (1, 20), (1, 30)])
    assert best(made, replicas, 0) == 1
    assert best(made, replicas, 0, 1) == 2
    assert made.best(replicas) is None


def test_choosing_adds_to_its_requests_in_flight() -> None:
    made, replicas = pool([(1, 10), (1, 20), (2, 30), (2, 30)], quantile=0.5, uses=5)
    probe = made.best(())
    assert probe is not None
    assert probe.replica is replicas[0]
    made.use(probe)
    assert made.probes[0].in_flight == 2
    # Above the limit now: the next one is taken.
    assert made.hot_above == 1
    assert best(made, replicas) == 1


def test_a_probe_serves_so_many_queries_and_is_gone() -> None:
    made, replicas = pool([(1, 10), (1, 20)], uses=3)
    for left in (2, 1, 0):
        probe = made.probes[0]
        assert probe.replica is replicas[0]
        made.use(probe)
        assert (replicas[0] in made.by_replica) == (left > 0)


def test_uses_are_rounded_at_random_to_the_right_mean() -> None:
    made = ProbePool(Random(3), 16, SECOND, 0.84, 1.0)
    made.uses = 1.3
    replica = fleet(1)[0]
    drawn = []
    for number in range(4000):
        made.add(replica, 1, 1.0, number)
        drawn.append(made.probes[0].uses)
    assert set(drawn) == {1, 2}
    assert sum(drawn) / len(drawn) == pytest.approx(1.3, abs=0.03)


def test_the_worst_and_the_oldest_leave_in_turn() -> None:
    made, replicas = pool([(1, 10), (2, 50), (1, 20), (9, 5), (1, 30), (1, 15), (2, 17)])
    left = []
    for _ in range(4):
        before = {probe.replica for probe in made.probes}
        made.thin()
        (gone,) = before - {probe.replica for probe in made.probes}
        left.append(replicas.index(gone))
    # The hottest; the oldest; none is hot: the slowest; the oldest.
    assert left == [3, 0, 1, 2]


def test_a_fraction_leaves_per_query() -> None:
    made = ProbePool(Random(1), 16, SECOND, 0.84, 0.25)
    for number, replica in enumerate(fleet(10)):
        made.add(replica, 1, 1.0, number)
    for _ in range(8):
        made.thin()
    assert len(made.probes) == 8


def test_a_probe_grows_old() -> None:
    made, replicas = pool([(1, 10), (1, 20), (1, 30)])
    made.expire(SECOND)
    assert len(made.probes) == 3
    made.expire(SECOND + 2)
    assert [probe.replica for probe in made.probes] == [replicas[2]]


def test_a_full_pool_forgets_the_oldest() -> None:
    made, replicas = pool([(1, number) for number in range(20)])
    assert [probe.replica for probe in made.probes] == replicas[4:]


def test_one_probe_of_each_worker_the_newest() -> None:
    made, replicas = pool([(1, 10), (1, 20)])
    made.add(replicas[0], 7, 70, 100)
    assert [(probe.replica, probe.in_flight) for probe in made.probes] == [(replicas[1], 1), (replicas[0], 7)]


def test_reuse_is_the_papers_formula() -> None:
    # n = 100, m = 16, 3 probes, 1 removal: 2 / (0.84 · 3 - 1).
    assert reuse(100, 16, 3, 1) == pytest.approx(2 / 1.52)
    assert reuse(10_000, 16, 6, 1) == 1.0
    # Where it would not end, a constant.
    assert reuse(17, 16, 3, 1) == reuse(100, 16, 1, 1) == 8.0


def make(size: int = 40, **options: float) -> tuple[Prequal, list[Replica]]:
    policy, replicas = Prequal(Random(5), **options), fleet(size)  # type: ignore[arg-type]
    policy.replicas_changed(replicas)
    return policy, replicas


def answer(policy: Prequal, replica: Replica, in_flight: int, latency_ns: int, now: int) -> None:
    replica.reported(LoadReport(in_flight, 0, 0, latency_ns), now)
    policy.reported(replica, now)


def test_without_probes_a_few_at_random_are_compared_and_counted() -> None:
    policy, replicas = make()
    chosen = {policy.choose(Demand(), SECOND) for _ in range(200)}
    assert len(chosen) > 20
    assert policy.random_fallback == 200
    replicas[0].in_flight = 5
    assert all(policy.choose(Demand(), SECOND) is not replicas[0] for _ in range(200))


def test_about_three_probes_a_query_to_members_at_random() -> None:
    policy, replicas = make()
    asked: list[Replica] = []
    for _ in range(1000):
        policy.choose(Demand(), SECOND)
        asked += policy.probes(SECOND)
    # Less what was drawn twice at once.
    assert 2800 < len(asked) <= 3000
    assert set(asked) == set(replicas)
    half, _ = make(probes_per_query=0.5)
    assert sum(len(half.probes(SECOND)) for _ in range(100)) == 50


def test_answers_to_probes_make_the_choice() -> None:
    policy, _ = make()
    asked: list[Replica] = []
    while len(set(asked)) < 6:
        asked += policy.probes(SECOND)
    for number, replica in enumerate(dict.fromkeys(asked)):
        answer(policy, replica, 1, (50 - number) * MS if number != 3 else MS, SECOND)
    assert policy.choose(Demand(), SECOND) is list(dict.fromkeys(asked))[3]
    assert policy.random_fallback == 0


def test_reports_that_were_not_probed_for_do_not_displace_probes() -> None:
    policy, replicas = make()
    asked = list(dict.fromkeys(policy.probes(SECOND)))
    for replica in asked:
        answer(policy, replica, 1, 10 * MS, SECOND)
    stranger = next(replica for replica in replicas if replica not in asked)
    answer(policy, stranger, 0, MS, SECOND)
    assert policy.choose(Demand(), SECOND) in asked


def test_a_replica_with_failures_alone_does_not_look_fast() -> None:
    policy, _ = make(tolerance=1.0, slack_us=0)
    asked: list[Replica] = []
    while len(set(asked)) < 4:
        asked += policy.probes(SECOND)
    failing, *others = dict.fromkeys(asked)
    for _ in range(10):
        load = failing.sent()
        failing.ended(load, 1000, True, SECOND)
    for replica in others:
        answer(policy, replica, 1, 10 * MS, SECOND)
    answer(policy, failing, 0, 0, SECOND)
    assert policy.choose(Demand(), SECOND) is not failing


def test_a_member_that_left_is_not_chosen_from_the_pool() -> None:
    policy, replicas = make()
    for _ in range(10):
        for replica in policy.probes(SECOND):
            answer(policy, replica, 1, 10 * MS, SECOND)
    policy.replicas_changed(replicas[:20])
    for _ in range(50):
        chosen = policy.choose(Demand(), SECOND)
        assert chosen in replicas[:20]
        for replica in policy.probes(SECOND):
            answer(policy, replica, 1, 10 * MS, SECOND)
    answer(policy, replicas[30], 0, MS, SECOND)
    assert all(policy.choose(Demand(), SECOND) in replicas[:20] for _ in range(10))
