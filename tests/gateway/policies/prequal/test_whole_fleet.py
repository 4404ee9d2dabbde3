"""Prequal on a fleet that it knows whole: equals share, the slow, the stopped and the failing are left alone."""

from __future__ import annotations

from collections import Counter
from random import Random

from policy_queues import MS, fleet

from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.prequal.policy import Prequal
from isochrone.gateway.replicas import FRESH_NS, LoadReport, Replica

SECOND = 1_000_000_000


class Gateway:
    """The least of a shell around the policy."""

    def __init__(self, size: int = 4) -> None:
        self.policy = Prequal(Random(3))
        self.replicas = fleet(size)
        self.now = SECOND
        self.policy.replicas_changed(self.replicas)

    def send(self, *avoid: Replica) -> tuple[Replica, int]:
        replica = self.policy.choose(Demand(avoid=avoid), self.now)
        return replica, self.to(replica)

    def to(self, replica: Replica) -> int:
        load = replica.sent()
        self.policy.sent(replica, self.now)
        return load

    def end(self, replica: Replica, load: int, latency_ns: int, failed: bool = False) -> None:
        replica.ended(load, latency_ns, failed, self.now)
        self.policy.ended(replica, latency_ns, failed, self.now)

    def serve(self, replica: Replica, latency_ns: int, failed: bool = False) -> None:
        load = self.to(replica)
        self.now += latency_ns
        self.end(replica, load, latency_ns, failed)

    def report(self, replica: Replica, report: LoadReport) -> None:
        replica.reported(report, self.now)
        self.policy.reported(replica, self.now)

    def one_by_one(self, count: int, latency_ns: int) -> Counter[int]:
        """Requests one after the other; the replicas that got them."""
        counts: Counter[int] = Counter()
        for _ in range(count):
            replica, load = self.send()
            self.now += latency_ns
            self.end(replica, load, latency_ns)
            counts[self.replicas.index(replica)] += 1
        return counts


def known(latencies_ms: list[float]) -> Gateway:
    """All replicas have answered a few times, with these latencies."""
    gateway = Gateway(len(latencies_ms))
    for _ in range(40):
        for replica, latency in zip(gateway.replicas, latencies_ms, strict=True):
            gateway.serve(replica, int(latency * MS))
    return gateway


def test_equals_take_turns() -> None:
    gateway = known([5.0, 5.1, 4.9, 5.2])
    assert set(gateway.one_by_one(100, 5 * MS).values()) == {25}


def test_latencies_that_differ_by_little_are_equal() -> None:
    gateway = known([5.0, 8.0, 5.0, 9.0])
    assert min(gateway.one_by_one(40, 5 * MS).values()) == 10


def test_the_least_loaded_of_equals() -> None:
    gateway = known([5.0] * 4)
    for replica in (*gateway.replicas[:3], gateway.replicas[0]):
        gateway.to(replica)
    assert gateway.send()[0] is gateway.replicas[3]


def test_a_slow_worker_is_left_alone_until_the_others_are_as_slow() -> None:
    gateway = known([5.0, 5.0, 5.0, 50.0])
    assert set(gateway.one_by_one(60, 5 * MS)) == {0, 1, 2}
    for replica in gateway.replicas[:3]:
        gateway.report(replica, LoadReport(9, 8, 60 * MS, 5 * MS))
    assert gateway.send()[0] is gateway.replicas[3]


def test_a_stopped_worker_gets_nothing_more_once_it_is_late() -> None:
    gateway = known([5.0] * 4)
    stopped = gateway.replicas[0]
    gateway.to(stopped)
    sent_there = 0
    pending: list[tuple[int, Replica, int]] = []
    for _ in range(2000):
        gateway.now += MS
        while pending and pending[0][0] <= gateway.now:
            _, replica, load = pending.pop(0)
            gateway.end(replica, load, 5 * MS)
        replica, load = gateway.send()
        if replica is stopped:
            sent_there += 1
        else:
            pending.append((gateway.now + 5 * MS, replica, load))
    # It is expected to answer within 5 ms; in the next few it gets its fair share, and then nothing for two seconds.
    assert sent_there <= 2
    assert stopped.in_flight == 1 + sent_there


def test_a_stopped_worker_stays_alone_when_its_requests_are_given_up() -> None:
    gateway = known([5.0] * 4)
    stopped = gateway.replicas[0]
    loads = [gateway.to(stopped), gateway.to(stopped)]
    gateway.now += SECOND // 2
    gateway.end(stopped, loads[1], SECOND // 2, failed=True)
    stopped.dropped()
    gateway.policy.dropped(stopped, 0, gateway.now)
    assert stopped.in_flight == 0
    assert 0 not in gateway.one_by_one(80, 5 * MS)
    # A load report, when it runs again, is enough.
    gateway.report(stopped, LoadReport(0, 0, 0, 5 * MS))
    assert gateway.one_by_one(80, 5 * MS)[0] > 10


def test_a_quick_failure_is_not_silence() -> None:
    gateway = known([5.0] * 4)
    gateway.serve(gateway.replicas[0], MS, failed=True)
    assert gateway.one_by_one(80, 5 * MS)[0] > 10


def test_a_replica_that_fails_fast_is_avoided() -> None:
    gateway = known([5.0] * 4)
    failures = 0
    for _ in range(400):
        replica, load = gateway.send()
        failed = replica is gateway.replicas[2]
        failures += failed
        gateway.now += MS if failed else 5 * MS
        gateway.end(replica, load, MS if failed else 5 * MS, failed)
    assert failures < 12


def test_a_replica_with_failures_alone_is_avoided() -> None:
    gateway = Gateway()
    failures = 0
    for _ in range(400):
        replica, load = gateway.send()
        failed = replica is gateway.replicas[2]
        failures += failed
        gateway.now += MS
        gateway.end(replica, load, MS, failed)
    assert failures < 20


def test_a_passed_over_worker_is_tried_now_and_then_and_comes_back() -> None:
    gateway = known([5.0, 5.0, 5.0, 50.0])
    slow = gateway.replicas[3]
    counts: Counter[str] = Counter()
    for phase, latency in (("slow", 50 * MS), ("well", 5 * MS)):
        for _ in range(6000):
            replica, load = gateway.send()
            mine = replica is slow
            gateway.now += latency if mine else 5 * MS
            gateway.end(replica, load, latency if mine else 5 * MS)
            counts[phase] += mine
    assert 2 <= counts["slow"] <= 15
    assert gateway.policy.counts()["trial"] >= counts["slow"]
    assert counts["well"] > 500


def test_load_reports_include_requests_of_other_gateways() -> None:
    gateway = known([5.0] * 3)
    gateway.report(gateway.replicas[0], LoadReport(4, 3))
    gateway.report(gateway.replicas[1], LoadReport(1, 0))
    assert gateway.send()[0] is gateway.replicas[2]
    gateway.to(gateway.replicas[2])
    assert gateway.send()[0] is gateway.replicas[1]
    gateway.now += 3 * FRESH_NS
    assert gateway.replicas[0] in {gateway.send()[0] for _ in range(3)}


def test_a_report_far_below_the_measured_latency_is_not_used() -> None:
    gateway = known([5.0, 5.0, 5.0, 50.0])
    for _ in range(60):
        for replica in gateway.replicas:
            gateway.report(replica, LoadReport(0, 0, 0, 5 * MS))
        replica, load = gateway.send()
        assert replica is not gateway.replicas[3]
        gateway.now += 5 * MS
        gateway.end(replica, load, 5 * MS)


def test_the_silent_are_asked_and_others_are_not() -> None:
    gateway = known([5.0] * 4)
    gateway.now += SECOND
    for replica in gateway.replicas[:3]:
        gateway.report(replica, LoadReport(0, 0, 0, 5 * MS))
    gateway.send()
    assert list(gateway.policy.probes(gateway.now)) == [gateway.replicas[3]]
    assert list(gateway.policy.probes(gateway.now)) == []


def test_avoided_ones_are_left_out_even_when_they_are_the_best() -> None:
    gateway = known([5.0, 50.0, 50.0, 5.0])
    quick = (gateway.replicas[0], gateway.replicas[3])
    assert gateway.send(*quick)[0] in gateway.replicas[1:3]
    assert gateway.send(*gateway.replicas[:3])[0] is gateway.replicas[3]


def test_replicas_that_stay_keep_their_figures() -> None:
    gateway = known([5.0, 5.0, 5.0, 50.0])
    gateway.policy.replicas_changed(gateway.replicas[1:])
    assert 3 not in gateway.one_by_one(30, 5 * MS)
    for replica in gateway.replicas[1:]:
        gateway.to(replica)
    gateway.now += 100 * MS
    # Late replicas, all alike, and one that was not eligible for a time and still has a request in flight.
    gateway.replicas[0].in_flight = 1
    gateway.policy.replicas_changed(gateway.replicas)
    assert gateway.send()[0] in gateway.replicas
