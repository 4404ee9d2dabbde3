"""Where requests go when an attempt failed, and where they must not go."""

from __future__ import annotations

import pytest
from offline import add_members, make_fleet
from plain_requests import plain_request, told

from isochrone.clock import MILLISECOND, NEVER, SECOND
from isochrone.errors import ConnectionLost
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.placement.balancer import BalancerRules
from isochrone.gateway.policies.base import TokenDeadlines
from isochrone.gateway.replicas import LoadReport
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.machine import RequestMachine
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.resilience.breaker import BreakerRules
from isochrone.gateway.resilience.hedging import HedgeRules
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.affinity import SEQUENCE_MARK
from isochrone.gateway.traffic.tiers import TierRules
from isochrone.gateway.upstream.addresses import Upstream

MODEL = {"m": {"1": ""}}
BALANCER = BalancerRules(panic_threshold=0.0, slow_start_ns=0)


def fleet_of(rules: ModelRules, workers: int) -> Fleet:
    fleet = make_fleet(GatewayRules(defaults=rules))
    add_members(fleet, *[MODEL] * workers)
    return fleet


def only(fleet: Fleet, *addresses: str) -> None:
    for address, member in fleet.members.items():
        member.endpoint.healthy = address in addresses
    fleet.rebuild()


def tiered(edge: int, way_ns: int = 0) -> Fleet:
    """Workers of the tier edge, and one of the tier core, which is so far away."""
    tiers = TierRules(order=("edge", "core"), way_ns={"core": way_ns})
    rules = ModelRules(policy="round_robin", tiers=tiers, balancer=BALANCER)
    fleet = make_fleet(GatewayRules(defaults=rules))
    names = [(f"edge{number}", "edge") for number in range(edge)] + [("core", "core")]
    fleet.set_members(Upstream(name, 1, 1, tier=tier) for name, tier in names)
    for member in fleet.members.values():
        member.endpoint.healthy = member.endpoint.reports = True
        member.endpoint.joined_at = -SECOND
        member.serves = MODEL
    fleet.rebuild()
    return fleet


def test_no_suspect_goes_to_the_endpoint_whose_process_has_just_ended() -> None:
    fleet = fleet_of(ModelRules(policy="round_robin", balancer=BALANCER), 3)
    machine, served, now = RequestMachine(fleet), fleet.model("m"), SECOND
    addresses = list(fleet.members)
    only(fleet, addresses[0])
    requests = [plain_request(served, number, now) for number in (1, 2, 3)]
    for request in requests:
        machine.arrive(request, now)
    only(fleet, *addresses)
    for request in requests:
        machine.lost(request, request.attempts[0], ConnectionLost("cut"), now)
    machine.checked(fleet.members[addresses[0]].endpoint, False, now)
    struck = next(request for request in requests if request.attempts)
    endpoint = struck.attempts[0].replica.endpoint
    machine.lost(struck, struck.attempts[0], ConnectionLost("cut"), now)
    instructions = told(machine.checked(endpoint, False, now))
    assert ("GONE", 0, endpoint.address) in instructions
    assert not [where for do, _, where in instructions if do == "SEND" and where == endpoint.address]


def test_a_hedged_request_whose_endpoints_both_fail_is_given_up() -> None:
    fleet = fleet_of(ModelRules(policy="round_robin", hedge=HedgeRules(ratio=1.0, least_seen=0), balancer=BALANCER), 2)
    machine, served, now = RequestMachine(fleet), fleet.model("m"), SECOND
    for number in range(32):
        request = plain_request(served, number, now)
        machine.arrive(request, now)
        now += MILLISECOND
        machine.answered(request, request.attempts[0], Outcome.ANSWERED, now)
        fleet.refresh(now)
    request = plain_request(served, 99, now)
    machine.arrive(request, now)
    now = request.due_at
    machine.due(request, now)
    stalled, killed = request.attempts[1].replica.endpoint, request.attempts[0]
    stalled.healthy = False
    fleet.rebuild()
    machine.endpoint_lost(stalled, now)
    machine.lost(request, killed, ConnectionLost("cut"), now)
    machine.checked(killed.replica.endpoint, False, now)
    assert request.due_at != NEVER
    machine.due(request, request.due_at)
    assert request.over


class TestTiers:
    def test_rejected_by_a_whole_tier(self) -> None:
        fleet = tiered(2)
        machine, now = RequestMachine(fleet), SECOND
        request = plain_request(fleet.model("m"), 1, now)
        machine.arrive(request, now)
        machine.answered(request, request.attempts[0], Outcome.NOT_BEGUN, now)
        again = machine.answered(request, request.attempts[0], Outcome.NOT_BEGUN, now)
        assert told(again) == [("SEND", 1, "core:1")]

    def test_rejected_by_one_that_drains(self) -> None:
        fleet = tiered(1)
        machine, now = RequestMachine(fleet), SECOND
        request = plain_request(fleet.model("m"), 1, now)
        machine.arrive(request, now)
        report = LoadReport(0, 0, draining=True)
        again = machine.answered(request, request.attempts[0], Outcome.NOT_BEGUN, now, report)
        assert told(again) == [("SEND", 1, "core:1")]

    def test_the_only_endpoint_of_a_tier_fails_its_health_checks(self) -> None:
        fleet = tiered(1)
        machine, now = RequestMachine(fleet), SECOND
        request = plain_request(fleet.model("m"), 1, now)
        machine.arrive(request, now)
        endpoint = request.attempts[0].replica.endpoint
        endpoint.healthy = False
        fleet.rebuild()
        again = told(machine.endpoint_lost(endpoint, now))
        assert [each for each in again if each[0] == "SEND"] == [("SEND", 1, "core:1")]

    def test_hedges_stay_in_their_tier(self) -> None:
        fleet = tiered(1)
        machine, served, now = RequestMachine(fleet), fleet.model("m"), SECOND
        served.hedge_delay_ns = MILLISECOND
        request = plain_request(served, 1, now)
        machine.arrive(request, now)
        assert machine.due(request, request.due_at) == []
        assert [replica.endpoint.tier for replica in request.tried] == ["edge"]
        assert request.replica_set.whole is not None


class TestTokensInTiers:
    """Deadlines of tokens: a request that its tier is too late for goes to another tier."""

    def sent(self, fleet: Fleet, tokens: TokenDeadlines, **token_ms: int) -> list[Instruction]:
        """What becomes of a request, where workers report this time until a token, and the same between tokens."""
        served = fleet.model("m")
        for address, replica in served.current.replicas.items():
            time_ns = token_ms[address.partition(":")[0]] * MILLISECOND
            report = LoadReport(1, 0, wait_ns=time_ns, least_wait_ns=time_ns, inter_token_ns=time_ns)
            replica.reported(report, SECOND - 5 * MILLISECOND)
        request = plain_request(served, 1, SECOND)
        request.demand = request.demand.with_tokens(tokens)
        return RequestMachine(fleet).arrive(request, SECOND)

    BETWEEN = TokenDeadlines(NEVER, 10 * MILLISECOND)
    FIRST = TokenDeadlines(SECOND + 20 * MILLISECOND, 0)

    @pytest.mark.parametrize("tokens", [BETWEEN, FIRST])
    def test_the_next_tier_takes_what_the_nearest_is_late_for(self, tokens: TokenDeadlines) -> None:
        fleet = tiered(2)
        assert told(self.sent(fleet, tokens, edge0=50, edge1=60, core=2)) == [("SEND", 1, "core:1")]
        served = fleet.model("m")
        assert (served.tiers.spilled, served.admission.rejections, served.admission.probes) == (1, 0, 0)

    def test_the_nearest_that_is_in_time_keeps_it(self) -> None:
        fleet = tiered(2)
        assert told(self.sent(fleet, self.BETWEEN, edge0=50, edge1=5, core=2)) == [("SEND", 1, "edge1:1")]
        assert fleet.model("m").tiers.spilled == 0

    def test_the_way_to_a_tier_counts_for_the_first_token_alone(self) -> None:
        far = tiered(1, way_ns=30 * MILLISECOND)
        far.model("m").admission._probed_at = SECOND
        ((do, _, error),) = self.sent(far, self.FIRST, edge0=50, core=2)
        assert do is Do.REJECT
        assert "core:1 was best" in str(error)
        assert far.model("m").admission.rejections == 1
        far = tiered(1, way_ns=30 * MILLISECOND)
        assert told(self.sent(far, self.BETWEEN, edge0=50, core=2)) == [("SEND", 1, "core:1")]

    def test_if_all_tiers_are_late_one_request_now_and_then_goes_to_the_nearest(self) -> None:
        fleet = tiered(1)
        assert told(self.sent(fleet, self.BETWEEN, edge0=50, core=40)) == [("SEND", 1, "edge0:1")]
        ((do, _, error),) = self.sent(fleet, self.BETWEEN, edge0=50, core=40)
        assert do is Do.REJECT
        assert "core:1 was best" in str(error)
        admission = fleet.model("m").admission
        assert (admission.probes, admission.rejections) == (1, 1)


class TestSequences:
    @pytest.mark.parametrize("kind", [Kind.SEQUENCE, Kind.STREAM])
    def test_limits_of_circuit_breakers_hold_for_them(self, kind: Kind) -> None:
        fleet = fleet_of(ModelRules(breaker=BreakerRules(max_in_flight=1), balancer=BALANCER), 1)
        machine, served = RequestMachine(fleet), fleet.model("m")
        first, second = (
            plain_request(served, number, SECOND, kind=kind, key=SEQUENCE_MARK + b"7") for number in (1, 2)
        )
        assert [do for do, *_ in told(machine.arrive(first, SECOND))] == ["SEND"]
        ((_, _, error),) = machine.arrive(second, SECOND)
        assert "max_in_flight (1)" in str(error)

    def test_the_highest_priority_is_always_sent(self) -> None:
        fleet = fleet_of(ModelRules(balancer=BALANCER), 1)
        machine, served = RequestMachine(fleet), fleet.model("m")
        (replica,) = served.current.replicas.values()
        replica.reported(LoadReport(1, 1, wait_ns=SECOND, run_ns=SECOND), SECOND)
        deadline = SECOND + 10 * MILLISECOND
        request = plain_request(served, 1, SECOND, deadline=deadline, kind=Kind.SEQUENCE, key=SEQUENCE_MARK, priority=1)
        assert [do for do, *_ in told(machine.arrive(request, SECOND))] == ["SEND"]


def test_only_answers_tell_hedges_how_long_answers_take() -> None:
    fleet = fleet_of(ModelRules(hedge=HedgeRules(least_seen=1), balancer=BALANCER), 2)
    machine, served, now = RequestMachine(fleet), fleet.model("m"), SECOND
    for outcome in (Outcome.REJECTED, Outcome.FAILED) * 16:
        request = plain_request(served, 1, now)
        machine.arrive(request, now)
        while request.attempts:
            machine.answered(request, request.attempts[0], outcome, now)
        fleet.refresh(now)
    assert served.hedge_delay_ns == 0


def test_rejections_for_their_version_are_counted() -> None:
    fleet = fleet_of(ModelRules(balancer=BALANCER), 1)
    machine, served = RequestMachine(fleet), fleet.model("m")
    fleet.is_led = True
    request = plain_request(served, 1, SECOND)
    request.version = "77"
    assert [do for do, *_ in told(machine.arrive(request, SECOND))] == ["REJECT"]
    assert (served.requests, served.rejected) == (1, 1)
