"""Prequal on a fleet that it knows whole: equals share, the slow, the stopped and the failing are left alone."""

from __future__ import annotations

from collections import Counter
from random import Random

from policy_queues import MS, fleet

from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.prequal import Prequal
from isochrone.gateway.targets import NEWS_NS, LoadReport, Target

SECOND = 1_000_000_000


class Gateway:
    """The least of a shell around the policy."""

    def __init__(self, size: int = 4) -> None:
        self.policy = Prequal(Random(3))
        self.targets = fleet(size)
        self.now = SECOND
        self.policy.members(self.targets)

    def send(self, *avoid: Target) -> tuple[Target, int]:
        target = self.policy.choose(Demand(avoid=avoid), self.now)
        return target, self.to(target)

    def to(self, target: Target) -> int:
        load = target.sent()
        self.policy.sent(target, self.now)
        return load

    def end(self, target: Target, load: int, latency_ns: int, failed: bool = False) -> None:
        target.ended(load, latency_ns, failed, self.now)
        self.policy.ended(target, latency_ns, failed, self.now)

    def serve(self, target: Target, latency_ns: int, failed: bool = False) -> None:
        load = self.to(target)
        self.now += latency_ns
        self.end(target, load, latency_ns, failed)

    def report(self, target: Target, report: LoadReport) -> None:
        target.reported(report, self.now)
        self.policy.reported(target, self.now)

    def one_by_one(self, count: int, latency_ns: int) -> Counter[int]:
        """Requests one after the other; who got them."""
        counts: Counter[int] = Counter()
        for _ in range(count):
            target, load = self.send()
            self.now += latency_ns
            self.end(target, load, latency_ns)
            counts[self.targets.index(target)] += 1
        return counts


def known(latencies_ms: list[float]) -> Gateway:
    """Everybody has answered a few times, with these latencies."""
    gateway = Gateway(len(latencies_ms))
    for _ in range(40):
        for target, latency in zip(gateway.targets, latencies_ms, strict=True):
            gateway.serve(target, int(latency * MS))
    return gateway


def test_equals_take_turns() -> None:
    gateway = known([5.0, 5.1, 4.9, 5.2])
    assert set(gateway.one_by_one(100, 5 * MS).values()) == {25}


def test_latencies_that_differ_by_little_are_equal() -> None:
    gateway = known([5.0, 8.0, 5.0, 9.0])
    assert min(gateway.one_by_one(40, 5 * MS).values()) == 10


def test_the_least_loaded_of_equals() -> None:
    gateway = known([5.0] * 4)
    for target in (*gateway.targets[:3], gateway.targets[0]):
        gateway.to(target)
    assert gateway.send()[0] is gateway.targets[3]


def test_a_slow_worker_is_left_alone_until_the_others_are_as_slow() -> None:
    gateway = known([5.0, 5.0, 5.0, 50.0])
    assert set(gateway.one_by_one(60, 5 * MS)) == {0, 1, 2}
    for target in gateway.targets[:3]:
        gateway.report(target, LoadReport(9, 8, 60 * MS, 5 * MS))
    assert gateway.send()[0] is gateway.targets[3]


def test_a_stopped_worker_gets_nothing_more_once_it_is_late() -> None:
    gateway = known([5.0] * 4)
    stopped = gateway.targets[0]
    gateway.to(stopped)
    sent_there = 0
    pending: list[tuple[int, Target, int]] = []
    for _ in range(2000):
        gateway.now += MS
        while pending and pending[0][0] <= gateway.now:
            _, target, load = pending.pop(0)
            gateway.end(target, load, 5 * MS)
        target, load = gateway.send()
        if target is stopped:
            sent_there += 1
        else:
            pending.append((gateway.now + 5 * MS, target, load))
    # It is expected to answer within 5 ms; in the next few it gets its fair share, and then nothing for two seconds.
    assert sent_there <= 2
    assert stopped.in_flight == 1 + sent_there


def test_a_stopped_worker_stays_alone_when_its_requests_are_given_up() -> None:
    gateway = known([5.0] * 4)
    stopped = gateway.targets[0]
    loads = [gateway.to(stopped), gateway.to(stopped)]
    gateway.now += SECOND // 2
    gateway.end(stopped, loads[1], SECOND // 2, failed=True)
    stopped.dropped()
    gateway.policy.dropped(stopped, gateway.now)
    assert stopped.in_flight == 0
    assert 0 not in gateway.one_by_one(80, 5 * MS)
    # Its word, when it runs again, is enough.
    gateway.report(stopped, LoadReport(0, 0, 0, 5 * MS))
    assert gateway.one_by_one(80, 5 * MS)[0] > 10


def test_a_quick_failure_is_not_silence() -> None:
    gateway = known([5.0] * 4)
    gateway.serve(gateway.targets[0], MS, failed=True)
    assert gateway.one_by_one(80, 5 * MS)[0] > 10


def test_who_fails_fast_is_left_alone() -> None:
    gateway = known([5.0] * 4)
    failures = 0
    for _ in range(400):
        target, load = gateway.send()
        failed = target is gateway.targets[2]
        failures += failed
        gateway.now += MS if failed else 5 * MS
        gateway.end(target, load, MS if failed else 5 * MS, failed)
    assert failures < 12


def test_who_never_did_anything_but_fail_is_left_alone() -> None:
    gateway = Gateway()
    failures = 0
    for _ in range(400):
        target, load = gateway.send()
        failed = target is gateway.targets[2]
        failures += failed
        gateway.now += MS
        gateway.end(target, load, MS, failed)
    assert failures < 20


def test_a_passed_over_worker_is_tried_now_and_then_and_comes_back() -> None:
    gateway = known([5.0, 5.0, 5.0, 50.0])
    slow = gateway.targets[3]
    counts: Counter[str] = Counter()
    for phase, latency in (("slow", 50 * MS), ("well", 5 * MS)):
        for _ in range(6000):
            target, load = gateway.send()
            mine = target is slow
            gateway.now += latency if mine else 5 * MS
            gateway.end(target, load, latency if mine else 5 * MS)
            counts[phase] += mine
    assert 2 <= counts["slow"] <= 15
    assert gateway.policy.trials >= counts["slow"]
    assert counts["well"] > 500


def test_the_worker_s_word_counts_what_others_sent() -> None:
    gateway = known([5.0] * 3)
    gateway.report(gateway.targets[0], LoadReport(4, 3))
    gateway.report(gateway.targets[1], LoadReport(1, 0))
    assert gateway.send()[0] is gateway.targets[2]
    gateway.to(gateway.targets[2])
    assert gateway.send()[0] is gateway.targets[1]
    gateway.now += 3 * NEWS_NS
    assert gateway.targets[0] in {gateway.send()[0] for _ in range(3)}


def test_a_word_far_from_what_is_seen_is_not_believed() -> None:
    gateway = known([5.0, 5.0, 5.0, 50.0])
    for _ in range(60):
        for target in gateway.targets:
            gateway.report(target, LoadReport(0, 0, 0, 5 * MS))
        target, load = gateway.send()
        assert target is not gateway.targets[3]
        gateway.now += 5 * MS
        gateway.end(target, load, 5 * MS)


def test_the_silent_are_asked_and_others_are_not() -> None:
    gateway = known([5.0] * 4)
    gateway.now += SECOND
    for target in gateway.targets[:3]:
        gateway.report(target, LoadReport(0, 0, 0, 5 * MS))
    gateway.send()
    assert list(gateway.policy.probes(gateway.now)) == [gateway.targets[3]]
    assert list(gateway.policy.probes(gateway.now)) == []


def test_avoided_ones_are_left_out_even_when_they_are_the_best() -> None:
    gateway = known([5.0, 50.0, 50.0, 5.0])
    quick = (gateway.targets[0], gateway.targets[3])
    assert gateway.send(*quick)[0] in gateway.targets[1:3]
    assert gateway.send(*gateway.targets[:3])[0] is gateway.targets[3]


def test_members_that_stay_keep_what_is_known() -> None:
    gateway = known([5.0, 5.0, 5.0, 50.0])
    gateway.policy.members(gateway.targets[1:])
    assert 3 not in gateway.one_by_one(30, 5 * MS)
    for target in gateway.targets[1:]:
        gateway.to(target)
    gateway.now += 100 * MS
    # Late ones, all alike, and one that was left out with a request of its own under way and is back.
    gateway.targets[0].in_flight = 1
    gateway.policy.members(gateway.targets)
    assert gateway.send()[0] in gateway.targets
