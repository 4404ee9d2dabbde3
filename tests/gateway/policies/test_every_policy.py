"""What holds for every policy, whatever happens: the chosen one is a member, the avoided ones are avoided, and the same
seed makes the same choices. A made-up gateway drives them through sends, ends, drops, reports and changes of members.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_queues import fleet

from isochrone.gateway import policies
from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.replicas import LoadReport, Replica

#: ``learned`` has guard rails and tests of its own.
NAMES = [name for name in policies.NAMES if name != "learned"]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "send avoiding", "end", "end", "fail", "drop", "report", "members"]),
        st.integers(0, 1 << 30),
    ),
    min_size=1,
    max_size=120,
)


class Drive:
    """Plays events on a policy and checks each choice."""

    def __init__(self, policy: Policy, size: int) -> None:
        self.policy = policy
        self.all = fleet(size)
        self.now = 5_000_000_000
        self.under_way: list[tuple[Replica, int, int]] = []
        self.chosen: list[int] = []
        self.members = list(self.all)
        policy.replicas_changed(self.members)

    def play(self, event: str, number: int) -> None:
        self.now += number % 40_000_000
        policy, now = self.policy, self.now
        if event == "send":
            key = b"key %d" % (number % 50) if number % 3 else b""
            self.send(Demand(key=key, rows=number % 8, prompt=key * (number % 100)))
        elif event == "send avoiding":
            self.send(Demand(key=b"k" if number % 2 else b"", avoid=tuple(self.all[: 1 + number % len(self.all)])))
        elif event in ("end", "fail", "drop") and self.under_way:
            replica, load, sent_at = self.under_way.pop(number % len(self.under_way))
            if event == "drop":
                replica.dropped()
                policy.dropped(replica, sent_at, now, unneeded=number % 2 == 0)
            else:
                replica.ended(load, now - sent_at, event == "fail", now)
                policy.ended(replica, now - sent_at, event == "fail", now)
        elif event == "report":
            replica = self.all[number % len(self.all)]
            replica.reported(LoadReport(number % 9, number % 5, number % 3 * 1_000_000, number % 2 * 900_000), now)
            policy.reported(replica, now)
        elif event == "members":
            random = Random(number)
            self.members = random.sample(self.all, 1 + number % len(self.all))
            policy.replicas_changed(self.members)

    def send(self, demand: Demand) -> None:
        replica = self.policy.choose(demand, self.now)
        assert replica in self.members
        if any(member not in demand.avoid for member in self.members):
            assert replica not in demand.avoid
        load = replica.sent()
        self.policy.sent(replica, self.now)
        assert all(asked in self.members for asked in self.policy.probes(self.now))
        self.under_way.append((replica, load, self.now))
        self.chosen.append(self.all.index(replica))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(size=st.sampled_from([1, 2, 4, 17, 60]), events=EVENTS)
def test_the_chosen_one_is_a_member_and_not_avoided(name: str, size: int, events: list[tuple[str, int]]) -> None:
    drive = Drive(policies.make(name, Random(1)), size)
    for event, number in events:
        drive.play(event, number)


@pytest.mark.parametrize("size", [1, 4, 60])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_makes_the_same_choices(name: str, size: int) -> None:
    random = Random(f"{name} {size}")
    kinds = ["send", "send", "send avoiding", "end", "end", "fail", "report", "members"]
    events = [(random.choice(kinds), random.getrandbits(30)) for _ in range(400)]
    twins = [Drive(policies.make(name, Random(9)), size) for _ in range(2)]
    for twin in twins:
        for event, number in events:
            twin.play(event, number)
    assert twins[0].chosen == twins[1].chosen
    assert len(twins[0].chosen) > 100


@pytest.mark.parametrize("name", NAMES)
def test_with_every_replica_avoided_one_is_chosen(name: str) -> None:
    drive = Drive(policies.make(name, Random(2)), 3)
    for key in (b"", b"agent"):
        assert drive.policy.choose(Demand(key=key, avoid=tuple(drive.all)), drive.now) in drive.all


@pytest.mark.parametrize("name", NAMES)
def test_requests_of_a_member_that_left_still_end(name: str) -> None:
    drive = Drive(policies.make(name, Random(3)), 20)
    for _ in range(60):
        drive.play("send", 0)
    drive.members = drive.all[:2]
    drive.policy.replicas_changed(drive.members)
    while drive.under_way:
        drive.play("end", 1_000_003)
        drive.play("send", 7)
        drive.play("end", 5)
    assert all(replica.in_flight == 0 for replica in drive.all)
    assert drive.policy.choose(Demand(), drive.now) in drive.members


@pytest.mark.parametrize("name", NAMES)
def test_members_may_go_away_and_come_back(name: str) -> None:
    policy = policies.make(name, Random(4))
    replicas = fleet(20)
    for members in (replicas, [], replicas[:1], replicas[5:], [], replicas):
        policy.replicas_changed(members)
        if members:
            assert policy.choose(Demand(key=b"k"), 10) in members
            assert policy.choose(Demand(), 20) in members


@pytest.mark.parametrize("name", NAMES)
def test_every_member_of_an_equal_fleet_gets_work(name: str) -> None:
    drive = Drive(policies.make(name, Random(5)), 4)
    for number in range(2000):
        drive.now += 1_000_000
        drive.send(Demand(key=b"agent %d" % number))
        if len(drive.under_way) > 2:
            replica, load, sent_at = drive.under_way.pop(0)
            replica.ended(load, drive.now - sent_at, False, drive.now)
            drive.policy.ended(replica, drive.now - sent_at, False, drive.now)
    shares = [drive.chosen.count(slot) / len(drive.chosen) for slot in range(4)]
    assert min(shares) > 0.15
    assert max(shares) < 0.4
