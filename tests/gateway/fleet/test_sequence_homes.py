"""Sequences stay at the worker that they began on, also when their requests come through two gateways."""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from offline import OfflineLoop, add_members, make_fleet, offline, turns

from isochrone.clock import MILLISECOND, now_ns
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.fleet.sequences import Home, Sequences
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.placement.admission import AdmissionRules
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import LoadReport, Replica
from isochrone.gateway.requests import placing
from isochrone.gateway.requests.request import Request
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.tiers import TierRules
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head

ONE = {"m": {"1": "x"}}
BOTH = {"m": {"1": "x", "2": "y"}}
EVER = 1 << 62


def gateway(*names: str) -> Fleet:
    """One gateway's view of healthy workers of these names."""
    fleet = make_fleet()
    join(fleet, *names)
    return fleet


def join(fleet: Fleet, *names: str) -> None:
    """The workers are these from now on."""
    new, _ = fleet.set_members(Upstream(name, 1, 1) for name in names)
    for member in new:
        member.endpoint.healthy = True
        member.endpoint.joined_at = -(10**18)
        member.serves = ONE
    fleet.rebuild()


def place(fleet: Fleet, key: bytes, *, starts: bool = False) -> Home:
    served = fleet.model("m")
    home = served.sequences.home(Demand(key, starts_sequence=starts), served.current)
    assert home is not None
    return home


def address(fleet: Fleet, key: bytes, *, starts: bool = False) -> str:
    return place(fleet, key, starts=starts).replica.endpoint.address


def next_home(fleet: Fleet, key: bytes, tried: Replica, *, lost: bool) -> Replica | None:
    served = fleet.model("m")
    return served.sequences.next_home(key, served.current, (tried,), lost=lost)


KEYS = [b"s%d" % number for number in range(60)]


class TestOneGateway:
    def test_a_home_is_kept_whatever_the_load(self) -> None:
        fleet = gateway("a", "b", "c")
        home = place(fleet, b"s7", starts=True)
        for _ in range(50):
            home.replica.sent()
        assert place(fleet, b"s7") is home

    def test_workers_share_the_sequences(self) -> None:
        fleet = gateway("a", "b", "c", "d")
        assert min(Counter(address(fleet, b"s%d" % number, starts=True) for number in range(200)).values()) > 20

    def test_a_worker_that_joins_moves_no_sequence(self) -> None:
        fleet = gateway("a", "b")
        before = {key: address(fleet, key, starts=True) for key in KEYS}
        join(fleet, "a", "b", "c")
        assert {key: address(fleet, key) for key in KEYS} == before
        assert {key: address(fleet, key, starts=True) for key in KEYS} == before, "an id that is used again, too"

    def test_a_lost_home_is_given_up_and_only_that_one(self) -> None:
        fleet = gateway("a", "b", "c")
        before = {key: address(fleet, key, starts=True) for key in KEYS}
        join(fleet, "b", "c")
        for key, home in before.items():
            assert (address(fleet, key) == home) is (home != "a:1")

    def test_a_worker_that_comes_back_still_has_its_sequences(self) -> None:
        fleet = gateway("a", "b", "c")
        before = {key: address(fleet, key, starts=True) for key in KEYS}
        for healthy in (False, True):
            fleet.members["a:1"].endpoint.healthy = healthy
            fleet.rebuild()
            for key, home in before.items():
                assert (address(fleet, key) == home) is (healthy or home != "a:1")

    def test_the_version_it_began_with_is_kept(self) -> None:
        fleet = gateway("a")
        assert place(fleet, b"s1", starts=True).replica_set.version == "1"
        fleet.members["a:1"].serves = BOTH
        fleet.rebuild()
        assert fleet.model("m").current.version == "2"
        assert place(fleet, b"s1").replica_set.version == "1"
        assert place(fleet, b"s1", starts=True).replica_set.version == "2", "a new sequence gets what is served now"
        fleet.members["a:1"].serves = {"m": {"2": "y"}}
        fleet.rebuild()
        assert place(fleet, b"s1").replica_set.version == "2"

    def test_nobody(self) -> None:
        fleet = make_fleet()
        for starts in (False, True):
            assert Sequences().home(Demand(b"s1", starts_sequence=starts), fleet.unknown.current) is None

    @given(st.lists(st.integers(0, 40), max_size=200))
    def test_every_step_of_a_sequence_meets_one_worker(self, steps: list[int]) -> None:
        fleet = gateway("a", "b")
        seen: dict[int, str] = {}
        for step in steps:
            home = address(fleet, b"s%d" % step, starts=step not in seen)
            assert seen.setdefault(step, home) == home
        assert len(fleet.model("m").sequences) == len(seen)


class TestFirstRequests:
    """Which requests may go to another worker after one that has not begun them."""

    def test_one_whose_worker_is_lost_goes_to_the_worker_that_other_gateways_choose_then(self) -> None:
        first, second = gateway("a", "b", "c"), gateway("a", "b", "c")
        for key in KEYS:
            tried = place(first, key, starts=True).replica
            moved = next_home(first, key, tried, lost=True)
            assert moved is not None
            first.model("m").sequences.settle(key, first.model("m").current, moved)
            second.members[tried.endpoint.address].endpoint.healthy = False
            second.rebuild()
            assert address(second, key) == moved.endpoint.address == address(first, key)
            second.members[tried.endpoint.address].endpoint.healthy = True
            second.rebuild()

    def test_one_that_a_living_worker_rejects_stays_where_other_gateways_look_for_it(self) -> None:
        fleet = gateway("a", "b", "c")
        home = place(fleet, b"s1", starts=True)
        assert next_home(fleet, b"s1", home.replica, lost=False) is None
        # Draining is the exception: no gateway looks there any more.
        home.replica.endpoint.draining = True
        fleet.rebuild()
        moved = next_home(fleet, b"s1", home.replica, lost=False)
        assert moved is not None
        assert moved is not home.replica

    @pytest.mark.parametrize("lost", [False, True])
    def test_a_later_request_never_moves(self, lost: bool) -> None:
        fleet = gateway("a", "b", "c")
        place(fleet, b"s1", starts=True)
        home = place(fleet, b"s1")
        assert next_home(fleet, b"s1", home.replica, lost=lost) is None

    @pytest.mark.parametrize("lost", [False, True])
    def test_a_later_request_that_is_new_to_this_gateway_never_moves(self, lost: bool) -> None:
        """It began through another gateway: on another worker it would be a second sequence."""
        fleet = gateway("a", "b", "c")
        home = place(fleet, b"s1")
        assert next_home(fleet, b"s1", home.replica, lost=lost) is None


class Caller:
    """An exchange whose caller waits for its answer."""

    owner: Any = None
    is_congested = False
    status = 0

    def __init__(self, head: Head, body: bytes) -> None:
        self.head, self.body, self.arrived = head, body, now_ns()

    def respond(self, status: int, headers: Any, body: Any) -> None:
        self.status = status


@pytest.mark.parametrize("starts", [False, True])
def test_only_a_first_request_is_sent_on_when_its_worker_is_gone(starts: bool) -> None:
    head = Head(b"POST", b"/v2/models/m/infer", ((b"host", b"gw"),))
    body = json.dumps({"inputs": [], "parameters": {"sequence_id": 7, "sequence_start": starts}}).encode()

    async def run(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
        add_members(gateway.fleet, *[ONE] * 3)
        loop.refuses = True
        caller = Caller(head, body)
        GatewayApplication(gateway).route(head).handle(caller)  # type: ignore[arg-type]
        await turns(20)
        assert caller.status == 503
        assert (gateway.fleet.model("m").retries > 0) is starts
        await gateway.close()

    offline(run)


class TwoGateways(RuleBasedStateMachine):
    """Sequences whose requests come through either of two gateways, while workers come, go, drain and are ejected.

    The gateways know nothing of each other. What must hold: a gateway that has placed a request of a sequence finds its
    worker again for as long as that lives. A gateway that has not finds it when no worker came, left or began to
    drain since the sequence started; what it alone thinks of a worker does not matter.
    """

    @initialize(size=st.integers(1, 5))
    def begin(self, size: int) -> None:
        self.names = [f"w{number}" for number in range(size)]
        self.fresh = count(size)
        self.ids = count(1)
        self.gateways = [gateway(*self.names) for _ in range(2)]
        self.draining: set[str] = set()
        #: Changes of the fleet so far.
        self.changes = 0
        #: Living sequences: worker, changes when it started, gateways that have placed a request of it.
        self.sequences: dict[bytes, tuple[str, int, set[int]]] = {}

    def update(self) -> None:
        self.changes += 1
        for fleet in self.gateways:
            join(fleet, *self.names)

    @rule(number=st.integers(0, 1))
    def start(self, number: int) -> None:
        key = b"s%d" % next(self.ids)
        home = place(self.gateways[number], key, starts=True)
        self.sequences[key] = (home.replica.endpoint.address, self.changes, {number})

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 1 << 16), number=st.integers(0, 1))
    def go_on(self, which: int, number: int) -> None:
        key = sorted(self.sequences)[which % len(self.sequences)]
        worker, changes, known = self.sequences[key]
        found = place(self.gateways[number], key).replica
        if number in known or changes == self.changes:
            assert found.endpoint.address == worker
            known.add(number)
        elif found.endpoint.address != worker:
            # The worker has no such sequence and says so. It is not sent on, and the sequence is over.
            assert next_home(self.gateways[number], key, found, lost=True) is None
            del self.sequences[key]
        else:
            known.add(number)

    @rule()
    def worker_joins(self) -> None:
        self.names.append(f"w{next(self.fresh)}")
        self.update()

    def others_take_sequences(self, name: str) -> bool:
        return any(other != name and other not in self.draining for other in self.names)

    @rule(which=st.integers(0, 1 << 16))
    def worker_leaves(self, which: int) -> None:
        gone = self.names[which % len(self.names)]
        if not self.others_take_sequences(gone):
            return
        self.names.remove(gone)
        self.update()
        for key in [key for key, (worker, _, _) in self.sequences.items() if worker == f"{gone}:1"]:
            del self.sequences[key]

    @rule(which=st.integers(0, 1 << 16), draining=st.booleans())
    def worker_drains(self, which: int, draining: bool) -> None:
        name = self.names[which % len(self.names)]
        if draining and not self.others_take_sequences(name):
            return
        (self.draining.add if draining else self.draining.discard)(name)
        for fleet in self.gateways:
            fleet.members[f"{name}:1"].endpoint.draining = draining
        self.update()

    @rule(which=st.integers(0, 1 << 16), number=st.integers(0, 1), until=st.sampled_from([0, EVER]))
    def gateway_ejects(self, which: int, number: int, until: int) -> None:
        """One gateway's opinion: what the other has started, it must still find."""
        fleet = self.gateways[number]
        fleet.members[f"{self.names[which % len(self.names)]}:1"].endpoint.ejected_until = until
        fleet.rebuild()


TestTwoGateways = TwoGateways.TestCase


def test_sequences_stay_in_the_nearest_tier_whatever_the_load_there() -> None:
    """Gateways see different loads; placed by load, a sequence would be split between tiers."""
    tiers, admits_all = TierRules(order=("edge", "core")), AdmissionRules(enabled=False)
    rules = GatewayRules(defaults=ModelRules(tiers=tiers, admission=admits_all))
    homes = []
    for wait_ms in (0, 1000):
        fleet = make_fleet(rules)
        fleet.set_members(
            Upstream(f"{tier}{number}", 1, 1, tier=tier) for tier in ("edge", "core") for number in (1, 2)
        )
        for member in fleet.members.values():
            member.endpoint.healthy, member.serves = True, {"m": {"1": ""}}
        fleet.rebuild()
        served = fleet.model("m")
        for replica in served.current.replicas.values():
            if replica.endpoint.tier == "edge":
                replica.reported(LoadReport(9, 9, wait_ms * MILLISECOND, MILLISECOND, MILLISECOND), fleet.clock())
        request = Request(fleet.clock())
        request.served, request.replica_set = served, served.current
        request.deadline = fleet.clock() + 500 * MILLISECOND
        request.demand = Demand(served.affinity.key(b"7"), request.deadline, 1, 1, (), True)
        homes.append(placing.place(request, fleet.clock()).endpoint.address)
    assert homes[0] == homes[1]
    assert homes[0].startswith("edge")
