"""Standby workers get requests only where too few others are well, and at once when they are put in place."""

from __future__ import annotations

from random import Random

import pytest
from offline import add_members, make_fleet
from plain_requests import plain_request, told

from isochrone.clock import MILLISECOND, SECOND
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.fleet.sequences import takes_sequences
from isochrone.gateway.placement.balancer import STANDING_BY, Balancer, Placement
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.round_robin import RoundRobin
from isochrone.gateway.replicas import Endpoint, LoadReport, Replica
from isochrone.gateway.requests.machine import RequestMachine
from isochrone.gateway.traffic.affinity import SEQUENCE_MARK


def balancer(states: str, placement: Placement | None = None) -> Balancer:
    """One letter a replica: w (well), i (ill), d (drains); S, I: the same of one that stands by."""
    replicas = []
    for number, state in enumerate(states):
        endpoint = Endpoint(str(number))
        endpoint.healthy = state in "wdS"
        endpoint.draining = state == "d"
        endpoint.standby = state in "SI"
        replicas.append(Replica(endpoint))
    made = Balancer(RoundRobin(Random(1)), Random(1), placement)
    made.update(replicas, SECOND)
    return made


@pytest.mark.parametrize(
    ("states", "eligible"),
    [
        ("wwS", "01"),
        ("wiS", "0"),  # half of them are well: that is enough
        ("wiiS", "03"),
        ("iiS", "2"),
        ("iiI", "01"),  # panic
        ("iiiS", "0123"),  # one is not enough for three: panic
        ("wiiiiiS", "0123456"),
        ("dS", "1"),
        ("S", "0"),
        ("wI", "0"),
        ("wS", "0"),
    ],
)
def test_they_help_where_too_few_are_well(states: str, eligible: str) -> None:
    assert "".join(each.endpoint.address for each in balancer(states).eligible) == eligible


def test_one_that_cannot_serve_the_model_does_not_help() -> None:
    made = balancer("iS", Placement(device="gpu"))
    assert made.eligible == []
    assert made.refusal(made.replicas[1]) == "device unknown is not gpu"
    assert balancer("iS").refusal(balancer("iS").replicas[1]) == STANDING_BY


def fleet() -> Fleet:
    made = make_fleet()
    made.lead()
    made.commit(1, {"m": Commitment(1, "1", {"1": ""})})
    add_members(made, {"m": {"1": ""}}, {"m": {"1": ""}})
    return made


def test_a_worker_that_is_put_in_place_gets_the_next_request() -> None:
    made = fleet()
    machine, served = RequestMachine(made), made.model("m")
    made.set_standbys({"b:1"})
    sent = [told(machine.arrive(plain_request(served, number, SECOND), SECOND)) for number in range(4)]
    assert {where for ((_, _, where),) in sent} == {"a:1"}
    made.set_standbys({"a:1"})
    assert told(machine.arrive(plain_request(served, 9, SECOND), SECOND))[0][2] == "b:1"
    made.set_standbys(())
    both = [told(machine.arrive(plain_request(served, number, SECOND), SECOND))[0][2] for number in range(10, 30)]
    assert set(both) == {"a:1", "b:1"}


def test_a_sequence_begins_on_a_standby_worker_where_no_other_is_well() -> None:
    made = fleet()
    made.members["a:1"].endpoint.healthy = False
    made.set_standbys({"b:1"})
    made.rebuild()
    machine, served = RequestMachine(made), made.model("m")
    request = plain_request(served, 1, SECOND, key=SEQUENCE_MARK + b"7")
    request.demand.starts_sequence = True
    assert told(machine.arrive(request, SECOND)) == [("SEND", 1, "b:1")]


def test_a_model_that_only_standby_workers_serve_is_served() -> None:
    made = fleet()
    made.set_standbys({"a:1", "b:1"})
    served = made.model("m")
    assert served.unserved(served.current) == ""


class TestLending:
    """Standby workers take requests that all others would answer too late."""

    def arrive(self, made: Fleet, number: int, now: int, milliseconds: int = 100) -> list[tuple[str, int, str]]:
        deadline = now + milliseconds * MILLISECOND
        return told(RequestMachine(made).arrive(plain_request(made.model("m"), number, now, deadline=deadline), now))

    def busy(self, made: Fleet, now: int, **wait_ms: int) -> None:
        for address, replica in made.model("m").current.replicas.items():
            wait = wait_ms[address.partition(":")[0]] * MILLISECOND
            replica.reported(LoadReport(1, 0, wait_ns=wait, run_ns=MILLISECOND), now - MILLISECOND)

    def standing_by(self) -> Fleet:
        made = fleet()
        made.set_standbys({"b:1"})
        made.model("m").admission._probed_at = SECOND
        return made

    def test_before_a_request_is_rejected(self) -> None:
        made = self.standing_by()
        self.busy(made, SECOND, a=10, b=0)
        assert self.arrive(made, 1, SECOND) == [("SEND", 1, "a:1")]
        self.busy(made, SECOND, a=500, b=0)
        assert self.arrive(made, 2, SECOND) == [("SEND", 2, "b:1")]
        assert made.model("m").admission.rejections == 0

    def test_if_they_are_late_too_it_is_rejected_once(self) -> None:
        made = self.standing_by()
        self.busy(made, SECOND, a=500, b=400)
        assert [do for do, _, _ in self.arrive(made, 1, SECOND)] == ["REJECT"]
        assert made.model("m").admission.rejections == 1
        assert len(made.model("m").current.balancer.eligible) == 1, "nothing is lent for a request that nobody can meet"

    def test_sequences_do_not_go_where_one_gateway_alone_lends(self) -> None:
        made = self.standing_by()
        self.busy(made, SECOND, a=500, b=0)
        self.arrive(made, 1, SECOND)
        replica_set = made.model("m").current
        lent = next(each for each in replica_set.balancer.eligible if each.endpoint.standby)
        assert not takes_sequences(lent, replica_set)

    def test_until_the_time_is_over(self) -> None:
        made = self.standing_by()
        self.busy(made, SECOND, a=500, b=0)
        self.arrive(made, 1, SECOND)
        assert len(made.model("m").current.balancer.eligible) == 2
        self.busy(made, 2 * SECOND, a=0, b=0)
        self.arrive(made, 2, 2 * SECOND)
        assert len(made.model("m").current.balancer.eligible) == 2
        self.busy(made, 7 * SECOND, a=0, b=0)
        assert {self.arrive(made, number, 7 * SECOND)[0][2] for number in range(3, 23)} == {"a:1"}
        assert len(made.model("m").current.balancer.eligible) == 1

    def test_again_if_the_others_are_still_late(self) -> None:
        made = self.standing_by()
        for now in (SECOND, 7 * SECOND, 13 * SECOND):
            self.busy(made, now, a=500, b=0)
            assert self.arrive(made, 1, now) == [("SEND", 1, "b:1")]

    def test_a_request_whose_deadline_has_passed_borrows_nothing(self) -> None:
        made = self.standing_by()
        self.busy(made, SECOND, a=500, b=0)
        assert [do for do, _, _ in self.arrive(made, 1, SECOND, milliseconds=0)] == ["REJECT"]
        assert len(made.model("m").current.balancer.eligible) == 1

    def test_one_that_is_ill_is_not_lent(self) -> None:
        made = balancer("wI")
        assert not made.can_lend
        made.lend(SECOND)
        assert len(made.eligible) == 1

    def test_an_explanation_says_that_it_was_chosen(self) -> None:
        made = balancer("wS")
        assert made.can_lend
        made.lend(SECOND)
        assert [row["excluded"] for row in made.explain(Demand(), None, SECOND)] == ["", ""]
