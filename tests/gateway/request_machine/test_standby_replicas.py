"""Standby workers get requests only where too few others are well, and at once when they are put in place."""

from __future__ import annotations

from random import Random

import pytest
from offline import add_members, make_fleet
from plain_requests import plain_request, told

from isochrone.clock import SECOND
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.placement.balancer import STANDING_BY, Balancer, Placement
from isochrone.gateway.policies.round_robin import RoundRobin
from isochrone.gateway.replicas import Endpoint, Replica
from isochrone.gateway.requests.machine import RequestMachine


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


def test_a_model_that_only_standby_workers_serve_is_served() -> None:
    made = fleet()
    made.set_standbys({"a:1", "b:1"})
    served = made.model("m")
    assert served.unserved(served.current) == ""
