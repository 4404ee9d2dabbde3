"""The request machine over any order of events: each request is answered once, and runs once where it must."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from offline import add_members, make_fleet
from plain_requests import PlainRequest

from isochrone.clock import MILLISECOND, NEVER, SECOND
from isochrone.errors import ConnectionLost, IsochroneError, Unavailable
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.machine import RequestMachine
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.resilience.hedging import HedgeRules
from isochrone.gateway.resilience.retry_budget import Kind, RetryRules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.waiting_room import WaitingRoomRules

MODEL = {"m": {"1": ""}}
FINAL = (Do.ANSWER, Do.REJECT, Do.CUT_OFF)
#: From the first answer on: histories are short.
HEDGE = HedgeRules(ratio=1.0, least_seen=0)


class Requests(RuleBasedStateMachine):
    """Requests arrive, are answered, lost, hedged, cancelled and expire while endpoints fail and come back."""

    @initialize(
        endpoints=st.integers(1, 4),
        idempotent=st.booleans(),
        attempts=st.integers(1, 4),
        policy=st.sampled_from(["round_robin", "least_connections", "prequal"]),
        room=st.sampled_from([0, 2]),
    )
    def start(self, endpoints: int, idempotent: bool, attempts: int, policy: str, room: int) -> None:
        retries = RetryRules(ratio=1.0, floor_per_second=100, attempts=attempts, idempotent=idempotent)
        self.retries = retries
        waiting_room = WaitingRoomRules(max_requests=room, max_wait_ns=SECOND)
        rules = ModelRules(policy=policy, retries=retries, hedge=HEDGE, waiting_room=waiting_room)
        self.fleet = make_fleet(GatewayRules(defaults=rules))
        add_members(self.fleet, *[MODEL] * endpoints)
        self.served = self.fleet.model("m")
        self.machine = RequestMachine(self.fleet)
        self.now = SECOND
        self.in_flight: list[Attempt] = []
        self.finals: Counter[Request] = Counter()
        self.gone: set[Request] = set()
        self.requests: list[Request] = []
        #: Endpoints that fail their health checks.
        self.stalled: set[Any] = set()
        #: Endpoints whose processes are being checked.
        self.checking: list[Any] = []
        #: Sendings of a request that may have run.
        self.runs: Counter[Request] = Counter()

    def carry_out(self, instructions: list[Instruction]) -> None:
        gone = []
        for what, request, subject in instructions:
            if what is Do.SEND:
                assert request is not None
                assert subject.replica.endpoint not in gone
                self.in_flight.append(subject)
                self.runs[request] += 1
                assert self.runs[request] <= 1 or (request.kind is Kind.STATELESS and self.retries.idempotent)
            elif what is Do.CANCEL:
                self.in_flight.remove(subject)
            elif what is Do.CHECK:
                self.checking.append(subject)
            elif what is Do.GONE:
                gone.append(subject)
                assert not subject.healthy
            elif what in FINAL:
                assert request is not None
                assert request.over
                self.finals[request] += 1
                assert self.finals[request] == 1

    @rule(kind=st.sampled_from([Kind.STATELESS, Kind.STREAM]), timeout_ms=st.sampled_from([0, 5, 100]))
    def arrive(self, kind: Kind, timeout_ms: int) -> None:
        request = PlainRequest(self.now)
        request.number = len(self.requests)
        request.served = self.served
        request.kind = kind
        request.deadline = self.now + timeout_ms * MILLISECOND if timeout_ms else NEVER
        request.demand = Demand(deadline=request.deadline) if timeout_ms else self.served.plain_demand
        self.requests.append(request)
        self.carry_out(self.machine.arrive(request, self.now))

    @precondition(lambda self: self.in_flight)
    @rule(
        data=st.data(), outcome=st.sampled_from([Outcome.ANSWERED, Outcome.FAILED, Outcome.NOT_BEGUN, Outcome.REJECTED])
    )
    def answer(self, data: st.DataObject, outcome: Outcome) -> None:
        attempt = self._take(data)
        if outcome is Outcome.NOT_BEGUN:
            self.runs[attempt.request] -= 1
        self.carry_out(self.machine.answered(attempt.request, attempt, outcome, self.now))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.NOT_BEGUN, Outcome.LOST, Outcome.FOREIGN]))
    def lose(self, data: st.DataObject, outcome: Outcome) -> None:
        attempt = self._take(data)
        if outcome is Outcome.NOT_BEGUN:
            self.runs[attempt.request] -= 1
        error: IsochroneError = ConnectionLost("cut", unprocessed=outcome is Outcome.NOT_BEGUN)
        if outcome is Outcome.FOREIGN:
            attempt.foreign, error = "a page", Unavailable("foreign")
        self.carry_out(self.machine.lost(attempt.request, attempt, error, self.now))

    @precondition(lambda self: self.checking)
    @rule(is_alive=st.booleans())
    def check(self, is_alive: bool) -> None:
        self.carry_out(self.machine.checked(self.checking.pop(0), is_alive, self.now))

    @precondition(lambda self: any(not attempt.streaming for attempt in self.in_flight))
    @rule(data=st.data())
    def stream(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from([one for one in self.in_flight if not one.streaming]))
        self.carry_out(self.machine.streaming(attempt.request, attempt, self.now))

    @precondition(lambda self: any(not one.over for one in self.requests))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([one for one in self.requests if not one.over]))
        self.gone.add(request)
        self.carry_out(self.machine.cancelled(request, self.now))

    @rule(ms=st.sampled_from([0, 1, 3, 20, 1500]))
    def wait(self, ms: int) -> None:
        self.now += ms * MILLISECOND
        self.served.tick(self.now)
        for request in [one for one in self.requests if one in self.machine.open and self.now >= one.due_at]:
            self.carry_out(self.machine.due(request, self.now))
            assert request.over or request.due_at > self.now, "the sweep would call it again and again"
        self.carry_out(self.machine.sweep(self.now))
        self.carry_out(self.machine.go_on_waiting(self.now))

    @rule(data=st.data(), draining=st.booleans())
    def drain(self, data: st.DataObject, draining: bool) -> None:
        data.draw(st.sampled_from(list(self.fleet.members.values()))).endpoint.draining = draining
        self.fleet.rebuild()

    @rule(data=st.data(), healthy=st.booleans())
    def health(self, data: st.DataObject, healthy: bool) -> None:
        member = data.draw(st.sampled_from(list(self.fleet.members.values())))
        member.endpoint.healthy = healthy
        self.fleet.rebuild()
        self.stalled.discard(member.endpoint)
        if not healthy:
            self.stalled.add(member.endpoint)
            self.carry_out(self.machine.endpoint_lost(member.endpoint, self.now))

    def _take(self, data: st.DataObject) -> Attempt:
        return self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))

    @invariant()
    def counts_agree(self) -> None:
        counts: Counter[Any] = Counter(attempt.replica.endpoint for attempt in self.in_flight)
        for member in self.fleet.members.values():
            assert member.endpoint.in_flight == counts[member.endpoint]
        for request in self.requests:
            is_open = request in self.machine.open
            is_waiting = request in set(self.machine.waiting)
            assert is_waiting is (request.held is not None)
            assert [is_open, is_waiting, request.over].count(True) == 1
            assert self.finals[request] == (0 if is_open or is_waiting or request in self.gone else 1)
            if is_waiting:
                assert self.now < request.deadline or self.now == request.arrived, "it has waited enough"
                assert self.now < request.arrived + SECOND
            assert set(request.attempts) == {one for one in self.in_flight if one.request is request}
            waits = self.checking or request.suspect is not None
            assert not is_open or request.attempts or waits, "nothing would ever end it"
            stalled = request.attempts and all(one.replica.endpoint in self.stalled for one in request.attempts)
            assert not is_open or not stalled or waits or request.due_at != NEVER, "it would wait as long as they do"


TestRequests = Requests.TestCase
