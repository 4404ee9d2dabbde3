"""How attempts of a divided model run: decided by the worker that was chosen, again for each attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from offline import add_members, make_fleet
from plain_requests import PlainRequest, plain_request

from isochrone.clock import MILLISECOND, NEVER, SECOND
from isochrone.errors import ConnectionLost, DeadlineExceeded
from isochrone.gateway.fleet.served_model import ServedModel
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import EndpointReport, LoadReport, Replica
from isochrone.gateway.requests.dividing import divide
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.machine import RequestMachine
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Attempt
from isochrone.gateway.resilience.hedging import HedgeRules
from isochrone.gateway.resilience.retry_budget import RetryRules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic import divisions as reasons
from isochrone.gateway.traffic.divisions import USED_NS, Choice, DivisionRules
from isochrone.gateway.traffic.fields import Fields
from isochrone.gateway.traffic.shadow import ShadowRules
from isochrone.gateway.traffic.tiers import TierRules
from isochrone.protocol.headers.divisions import DIVISION_HEADER

NOW = 100 * SECOND
MODEL = {"m": {"1": ""}}
RULES = ModelRules(
    policy="round_robin",
    retries=RetryRules(ratio=1.0, floor_per_second=100, idempotent=True),
    division=DivisionRules(("edge", "split", "core")),
)


class Bench:
    """A fleet of workers a, b, … that serve a divided model."""

    def __init__(self, workers: int = 1, rules: ModelRules = RULES) -> None:
        self.fleet = make_fleet(GatewayRules(defaults=rules))
        add_members(self.fleet, *[MODEL] * workers)
        self.machine = RequestMachine(self.fleet)
        self.sent = 0

    @property
    def served(self) -> ServedModel:
        return self.fleet.model("m")

    def replica(self, name: str) -> Replica:
        return self.served.current.replicas[f"{name}:1"]

    def report(self, name: str, *figures_ms: float, at: int = NOW) -> None:
        """By edge, split and core; the worker's own estimate is that of the core."""
        figures = tuple(int(ms * MILLISECOND) for ms in figures_ms)
        self.replica(name).reported(LoadReport(0, 0, 0, figures[2], figures[2], divisions=figures), at)

    def request(self, timeout_ms: float = 0, now: int = NOW) -> PlainRequest:
        self.sent += 1
        deadline = now + int(timeout_ms * MILLISECOND) if timeout_ms else NEVER
        return plain_request(self.served, self.sent, now, deadline=deadline)

    def send(self, request: PlainRequest, now: int = NOW) -> Attempt:
        return attempt_of(self.machine.arrive(request, now))

    def counts(self) -> tuple[int, ...]:
        assert self.served.divisions is not None
        return tuple(self.served.divisions.requests.values())


def attempt_of(instructions: list[Instruction]) -> Attempt:
    (attempt,) = (subject for do, _, subject in instructions if do is Do.SEND)
    assert isinstance(attempt, Attempt)
    return attempt


def choice_of(attempt: Attempt) -> Choice:
    assert attempt.division is not None
    return attempt.division


def test_a_model_without_the_rule_has_no_decision() -> None:
    bench = Bench(rules=replace(RULES, division=DivisionRules()))
    bench.report("a", 10, 20, 30)
    assert bench.send(bench.request()).division is None
    assert bench.served.divisions is None


def test_by_the_time_that_is_left_and_the_figures_of_the_worker() -> None:
    bench = Bench()
    bench.report("a", 30, 10, 80)
    assert choice_of(bench.send(bench.request(50))).division == "edge"
    choice = choice_of(bench.send(bench.request(20)))
    assert (choice.division, choice.reason, choice.time_left_ns) == ("split", reasons.IN_TIME, 20 * MILLISECOND)
    assert bench.counts() == (1, 1, 0)


def test_without_figures_the_worker_decides() -> None:
    bench = Bench()
    choice = choice_of(bench.send(bench.request(20)))
    assert (choice.division, choice.reason, choice.is_sent) == ("", reasons.NO_FIGURES, False)
    assert bench.counts() == (0, 0, 0)


def test_figures_decide_until_they_are_old_whatever_probes_bring() -> None:
    bench = Bench()
    bench.report("a", 10, 20, 30)
    endpoint = bench.replica("a").endpoint
    for after, decided in ((USED_NS, True), (USED_NS + 1, False)):
        endpoint.last_report = EndpointReport(endpoint, LoadReport(1, 0), NOW + after)
        endpoint.last_report_at = NOW + after
        assert choice_of(bench.send(bench.request(50, NOW + after), NOW + after)).is_sent is decided


def test_a_retry_decides_by_the_figures_of_its_worker_and_the_time_left() -> None:
    bench = Bench(2)
    bench.report("a", 10, 5, 40)
    bench.report("b", 90, 20, 40)
    request = bench.request(50)
    first = bench.send(request)
    if first.replica is bench.replica("b"):
        assert choice_of(first).division == "split"
    else:
        assert choice_of(first).division == "edge"
    later = NOW + 5 * MILLISECOND
    instructions = bench.machine.lost(request, first, ConnectionLost("gone", unprocessed=True), later)
    second = attempt_of(instructions)
    assert second.replica is not first.replica
    assert {choice_of(first).division, choice_of(second).division} == {"edge", "split"}
    assert choice_of(second).time_left_ns == 45 * MILLISECOND
    assert sum(bench.counts()) == 1, "a request counts once"


def test_a_retry_after_a_rejection_decides_again() -> None:
    bench = Bench(2)
    bench.report("a", 10, 5, 40)
    bench.report("b", 10, 5, 40)
    request = bench.request(50)
    first = bench.send(request)
    assert choice_of(first).division == "edge"
    second = attempt_of(bench.machine.answered(request, first, Outcome.NOT_BEGUN, NOW + 42 * MILLISECOND))
    assert choice_of(second).division == "split", "8 ms are left"


def test_a_hedge_decides_for_itself() -> None:
    hedge = HedgeRules(ratio=1.0, least_seen=0)
    bench = Bench(2, replace(RULES, hedge=hedge))
    bench.report("a", 10, 5, 40)
    bench.report("b", 10, 5, 40)
    bench.served.hedging.sent(100, NOW)
    request = bench.request(50)
    first = bench.send(request)
    request.hedge_at = request.due_at = NOW + 43 * MILLISECOND
    second = attempt_of(bench.machine.due(request, NOW + 43 * MILLISECOND))
    assert second.is_hedge
    assert (choice_of(first).division, choice_of(second).division) == ("edge", "split")


def test_the_way_to_the_tier_of_the_worker_counts() -> None:
    tiers = TierRules(("edge",), {"edge": 15 * MILLISECOND})
    bench = Bench(rules=replace(RULES, tiers=tiers))
    bench.fleet.members["a:1"].endpoint.tier = "edge"
    bench.fleet.rebuild()
    bench.report("a", 30, 10, 80)
    choice = choice_of(bench.send(bench.request(40)))
    assert choice.division == "split"
    assert choice.expected_ns == (45 * MILLISECOND, 25 * MILLISECOND, 95 * MILLISECOND)


class Named:
    def __init__(self, division: bytes) -> None:
        self._division = division

    def get(self, name: bytes) -> bytes | None:
        return self._division if name == DIVISION_HEADER else None


class Naming(PlainRequest):
    """A request whose caller names its division."""

    fields = Named(b"")

    @property
    def head(self) -> Fields:
        return self.fields


def naming(bench: Bench, division: bytes, timeout_ms: int) -> Naming:
    request = Naming(NOW)
    request.fields = Named(division)
    request.served, request.deadline = bench.served, NOW + timeout_ms * MILLISECOND
    request.demand = Demand(deadline=request.deadline)
    return request


def test_a_request_that_names_its_division_is_left_alone_and_not_rejected_by_figures_of_others() -> None:
    bench = Bench()
    bench.report("a", 10, 20, 30)
    choice = choice_of(bench.send(naming(bench, b"cut-12", 5)))
    assert (choice.division, choice.reason, choice.is_sent) == ("cut-12", reasons.NAMED, False)
    assert bench.counts() == (0, 0, 0)
    ((do, _, error),) = bench.machine.arrive(bench.request(5), NOW)
    assert do is Do.REJECT
    assert isinstance(error, DeadlineExceeded)


def test_a_request_is_admitted_by_the_fastest_division() -> None:
    """The worker's own estimate is 80 ms."""
    bench = Bench()
    bench.report("a", 60, 10, 80)
    assert choice_of(bench.send(bench.request(20))).division == "split"
    assert bench.served.admission.rejections == 0


def test_a_stream_goes_by_the_time_of_its_first_message() -> None:
    bench = Bench()
    bench.report("a", 30, 10, 80)
    request = bench.request()
    request.first_due = NOW + 20 * MILLISECOND
    assert choice_of(bench.send(request)).division == "split"


def test_each_worker_remembers_what_was_left_there() -> None:
    bench = Bench(2)
    bench.report("a", 60, 10, 80)
    bench.report("b", 35, 10, 80)
    found: dict[str, set[str]] = {}
    for _ in range(6):
        attempt = bench.send(bench.request(40))
        found.setdefault(attempt.replica.endpoint.address, set()).add(choice_of(attempt).division)
    assert found == {"a:1": {"split"}, "b:1": {"edge"}}
    bench.report("a", 35, 10, 80)
    for _ in range(2):
        attempt = bench.send(bench.request(40))
        found[attempt.replica.endpoint.address].add(choice_of(attempt).division)
    assert found == {"a:1": {"split"}, "b:1": {"edge"}}, "35 of 40 ms are not well within the time"


def test_other_rules_forget_what_was_left() -> None:
    """A request that was placed by the old rules may be sent to the old replica once more."""
    bench = Bench()
    bench.report("a", 60, 10, 80)
    request = bench.request(40)
    replica = bench.send(request).replica
    bench.served.configure(replace(RULES, division=DivisionRules(("core", "edge"))))
    replica.reported(replica.report._replace(divisions=(35 * MILLISECOND, 0, 0)), NOW)
    assert bench.served.divisions is not None
    choice = divide(request, bench.served.divisions, replica, NOW)
    assert (choice.division, choice.reason) == ("edge", reasons.IN_TIME)


def test_copies_are_not_counted() -> None:
    bench = Bench(rules=replace(RULES, shadow=ShadowRules(share=1.0, version="1")))
    bench.report("a", 10, 20, 30)
    instructions = bench.machine.arrive(bench.request(), NOW)
    (destination,) = (subject for do, _, subject in instructions if do is Do.COPY)
    copy = bench.request()
    choice = choice_of(attempt_of(bench.machine.arrive_copy(copy, destination, NOW)))
    assert choice.is_sent
    assert bench.counts() == (1, 0, 0)


@pytest.mark.parametrize("order", [("edge",), ("core", "split", "edge")])
def test_any_order(order: tuple[str, ...]) -> None:
    bench = Bench(rules=replace(RULES, division=DivisionRules(order)))
    bench.report("a", 1, 1, 1)
    assert choice_of(bench.send(bench.request(10))).division == order[0]


def test_a_kind_that_does_not_answer_is_left_until_it_does() -> None:
    bench = Bench(rules=replace(RULES, division=DivisionRules(("core", "edge"))))
    bench.report("a", 30, 20, 10)
    silent = bench.send(bench.request(5000))
    assert choice_of(silent).division == "core"
    later = NOW + 60 * MILLISECOND
    attempt = bench.send(bench.request(5000, later), later)
    assert (choice_of(attempt).division, choice_of(attempt).reason) == ("edge", reasons.SILENT)
    bench.machine.lost(silent.request, silent, ConnectionLost("it broke"), later)
    later += MILLISECOND
    assert choice_of(bench.send(bench.request(5000, later), later)).division == "edge"


def test_an_empty_header_is_none() -> None:
    """The worker reads it so, too, and decides; admission applies."""
    bench = Bench()
    bench.report("a", 60, 10, 80)
    choice = choice_of(bench.send(naming(bench, b" ", 20)))
    assert (choice.division, choice.reason, choice.is_sent) == ("", reasons.EMPTY, False)
    ((do, _, _),) = bench.machine.arrive(naming(bench, b"", 5), NOW)
    assert do is Do.REJECT


def test_a_probe_does_not_hide_what_was_sent_since_the_figures() -> None:
    bench = Bench()
    bench.report("a", 10, 20, 30)
    replica, admission = bench.replica("a"), bench.served.admission
    bench.send(bench.request())
    before = admission.expected_ns(replica, NOW)
    endpoint = replica.endpoint
    endpoint.last_report = EndpointReport(endpoint, LoadReport(1, 0), NOW + 1)
    endpoint.last_report_at = NOW + 1
    assert admission.expected_ns(replica, NOW + 1) == before
    bench.report("a", 10, 20, 30, at=NOW + 2)
    assert admission.expected_ns(replica, NOW + 2) < before
