"""What requests are charged to quotas, however they end."""

from __future__ import annotations

import pytest
from offline import add_members, make_fleet
from plain_requests import PlainRequest, plain_request

from isochrone.clock import MILLISECOND, NEVER, SECOND
from isochrone.gateway.replicas import LoadReport
from isochrone.gateway.requests.machine import RequestMachine
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.quota_rules import QuotaRules

RUN = 40 * MILLISECOND


@pytest.mark.parametrize("kind", [Kind.STATELESS, Kind.STREAM])
@pytest.mark.parametrize("end", ["answered", "cancelled", "expired"])
@pytest.mark.parametrize("after", [5 * MILLISECOND, SECOND])
def test_compute_is_charged_however_a_request_ends(kind: Kind, end: str, after: int) -> None:
    """Whether a caller reads the answer or not: at most a run, at most the time that it took."""
    quota = QuotaRules(compute_share=0.1, compute_burst_ns=1)
    fleet = make_fleet(GatewayRules(models={"m": ModelRules(quota=quota)}))
    add_members(fleet, {"m": {"1": ""}})
    machine = RequestMachine(fleet)
    now = SECOND
    request = plain_request(fleet.model("m"), 1, now, kind=kind, deadline=now + after if end == "expired" else NEVER)
    machine.arrive(request, now)
    (attempt,) = request.attempts
    attempt.replica.report = LoadReport(1, 0, run_ns=RUN)
    now += after
    if end == "answered":
        machine.answered(request, attempt, Outcome.ANSWERED, now)
    elif end == "cancelled":
        machine.cancelled(request, now)
    else:
        machine.due(request, now)
    assert request.over
    (quotas,) = fleet.model("m").quotas
    refusal = quotas.take(b"", 0, now)
    assert refusal is not None
    assert refusal.retry_after_ns == pytest.approx(10 * min(RUN, after), abs=20)


def test_requests_that_reached_no_worker_are_charged_no_compute() -> None:
    fleet = make_fleet(GatewayRules(models={"m": ModelRules(quota=QuotaRules(compute_share=0.1))}))
    machine = RequestMachine(fleet)
    request: PlainRequest = plain_request(fleet.model("m"), 1, SECOND)
    machine.arrive(request, SECOND)
    assert request.over
    assert request.compute_ns == 0
