"""Rejections are counted by reason, those of workers beside the gateway's own, and are no failures."""

from __future__ import annotations

from offline import add_members, make_fleet
from plain_requests import PlainRequest

from isochrone.clock import SECOND
from isochrone.errors import QueueFull
from isochrone.gateway.fleet.served_model import ServedModel
from isochrone.gateway.requests.instructions import Do
from isochrone.gateway.requests.machine import RequestMachine
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.resilience.retry_budget import RetryRules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules


def scene(members: int) -> tuple[RequestMachine, ServedModel, PlainRequest]:
    fleet = make_fleet(GatewayRules(defaults=ModelRules(retries=RetryRules(attempts=1))))
    add_members(fleet, *[{"m": {"1": ""}}] * members)
    request = PlainRequest(SECOND)
    request.served = fleet.model("m")
    request.demand = request.served.plain_demand
    return RequestMachine(fleet), request.served, request


def counted(served: ServedModel) -> dict[str, int]:
    return {reason: count for reason, count in served.rejections.items() if count}


def test_the_gateways_own_have_the_code_of_their_error() -> None:
    machine, served, request = scene(members=0)
    ((what, _, error),) = machine.arrive(request, SECOND)
    assert what is Do.REJECT
    assert counted(served) == {error.code: 1}
    assert (served.requests, served.rejected, served.failures) == (1, 1, 0)


def test_one_that_workers_reject_has_theirs() -> None:
    for outcome in (Outcome.NOT_BEGUN, Outcome.REJECTED):
        machine, served, request = scene(members=1)
        ((what, _, attempt),) = machine.arrive(request, SECOND)
        assert what is Do.SEND
        assert (Do.ANSWER, request, attempt) in machine.answered(request, attempt, outcome, SECOND)
        assert counted(served) == {"worker": 1}
        assert (served.requests, served.rejected, served.failures) == (1, 0, 0)


def test_answers_and_failures_are_none() -> None:
    for outcome, failures in ((Outcome.ANSWERED, 0), (Outcome.FAILED, 1)):
        machine, served, request = scene(members=1)
        ((_, _, attempt),) = machine.arrive(request, SECOND)
        machine.answered(request, attempt, outcome, SECOND)
        assert (counted(served), served.failures) == ({}, failures)


def test_any_code_is_counted() -> None:
    _, served, _ = scene(members=1)
    served.reject(QueueFull("full"))
    assert counted(served) == {QueueFull.code: 1}
    assert set(served.rejections) >= {"deadline_exceeded", "queue_full", "unavailable", "worker"}
