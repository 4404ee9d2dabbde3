"""Admission of divided models: by the fastest division that a request may run as, not by the worker's present one."""

from __future__ import annotations

from isochrone.clock import MILLISECOND, NEVER, SECOND
from isochrone.gateway.placement.admission import NO_ESTIMATE, Admission, AdmissionRules, Rejection
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import FRESH_NS, Endpoint, EndpointReport, LoadReport, Replica
from isochrone.gateway.traffic.divisions import DivisionRules, Divisions

NOW = 10 * SECOND
#: The worker runs it at the core now, which takes 80 ms.
PRESENT = 80 * MILLISECOND
RULES = AdmissionRules(probe_every_ns=NEVER)


def divided(name: str, *figures_ms: float, at: int = NOW) -> Replica:
    """By edge, split and core."""
    replica = Replica(Endpoint(name))
    figures = tuple(int(ms * MILLISECOND) for ms in figures_ms)
    replica.reported(LoadReport(0, 0, 0, PRESENT, PRESENT, divisions=figures or None), at)
    return replica


def admission(*order: str) -> Admission:
    made = Admission(RULES, Divisions(DivisionRules(order)) if order else None)
    made._probed_at = NOW
    return made


def demand(ms: float) -> Demand:
    return Demand(deadline=NOW + int(ms * MILLISECOND))


def test_another_division_in_time_is_no_reason_to_reject() -> None:
    replica = divided("a", 10, 20, 80)
    assert admission("edge", "split", "core").check([replica], replica, demand(15), NOW) is replica
    assert isinstance(admission().check([replica], replica, demand(15), NOW), Rejection)


def test_only_divisions_of_the_order_count() -> None:
    replica = divided("a", 10, 20, 80)
    assert isinstance(admission("split", "core").check([replica], replica, demand(15), NOW), Rejection)
    assert admission("split", "core").check([replica], replica, demand(25), NOW) is replica


def test_none_in_time_is_rejected_with_the_least() -> None:
    replica = divided("a", 10, 20, 80)
    verdict = admission("edge", "split", "core").check([replica], replica, demand(5), NOW)
    assert isinstance(verdict, Rejection)
    assert verdict.expected_ns == 10 * MILLISECOND + RULES.margin_ns


def test_a_worker_with_a_faster_division_is_found() -> None:
    """By its present division it would be ruled out."""
    slow, fast = divided("a", 50, 60, 80), divided("b", 10, 70, 80)
    checking = admission("edge", "split", "core")
    assert checking.check([slow, fast], slow, demand(30), NOW) is fast
    assert checking.moved == 1


def test_requests_since_the_report_count() -> None:
    replica = divided("a", 10, 20, 80)
    replica.sent_since = 4
    assert admission("edge").expected_ns(replica, NOW) == 20 * MILLISECOND


def test_a_worker_that_offers_none_of_the_order_is_judged_by_its_own_estimate() -> None:
    replica = divided("a", 0, 20, 80)
    assert admission("edge").expected_ns(replica, NOW) == PRESENT
    assert admission("edge").expected_ns(divided("b"), NOW) == PRESENT


def test_figures_that_a_probe_kept_expire() -> None:
    """The probe is new, and the figures are those of an answer before it: they say nothing of now."""
    replica = divided("a", 10, 20, 80)
    endpoint = replica.endpoint
    endpoint.last_report = EndpointReport(endpoint, LoadReport(0, 0), NOW + FRESH_NS)
    endpoint.last_report_at = NOW + FRESH_NS
    checking = admission("edge", "split", "core")
    assert checking.expected_ns(replica, NOW + FRESH_NS) == 10 * MILLISECOND
    assert replica.report.divisions == (10 * MILLISECOND, 20 * MILLISECOND, 80 * MILLISECOND)
    assert checking.expected_ns(replica, NOW + FRESH_NS + 1) == NO_ESTIMATE
    later = Demand(deadline=NOW + FRESH_NS + MILLISECOND)
    assert checking.check([replica], replica, later, NOW + FRESH_NS + 1) is replica
