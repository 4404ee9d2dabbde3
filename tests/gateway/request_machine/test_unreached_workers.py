"""Attempts that reached no worker: they cost neither the retry budget nor the request's attempts."""

from __future__ import annotations

from offline import add_members, make_fleet
from plain_requests import plain_request

from isochrone.clock import SECOND
from isochrone.errors import ConnectionLost
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.machine import RequestMachine
from isochrone.gateway.requests.request import Attempt
from isochrone.gateway.resilience.retry_budget import RetryRules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules

NO_BUDGET = RetryRules(ratio=0.0, floor_per_second=0, attempts=2)


def sent(instructions: list[Instruction]) -> Attempt | None:
    return next((subject for do, _, subject in instructions if do is Do.SEND), None)


def attempts_until_given_up(endpoints: int) -> int:
    """How often one request is sent where every connection is refused."""
    fleet = make_fleet(GatewayRules(defaults=ModelRules(policy="round_robin", retries=NO_BUDGET)))
    add_members(fleet, *[{"m": {"1": ""}}] * endpoints)
    machine = RequestMachine(fleet)
    request = plain_request(fleet.model("m"), 1, SECOND)
    attempt, count = sent(machine.arrive(request, SECOND)), 0
    while attempt is not None:
        count += 1
        attempt = sent(machine.lost(request, attempt, ConnectionLost("refused", unprocessed=True), SECOND))
    assert request.over
    return count


def test_every_worker_is_tried_while_connections_are_refused() -> None:
    assert attempts_until_given_up(5) == 5


def test_there_is_an_end_to_it() -> None:
    assert attempts_until_given_up(20) == 8
