"""The gateway and the simulator on equal histories: they execute the same instructions, one by one.

The gateway side is real down to the bytes: requests are HTTP, answers are HTTP heads. Only the connections are stubs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import MILLISECOND, SECOND
from isochrone.errors import ConnectionLost, IsochroneError
from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt
from isochrone.gateway.fleet.member import Member
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.housekeeping import finished
from isochrone.gateway.placement.admission import AdmissionRules
from isochrone.gateway.placement.balancer import BalancerRules
from isochrone.gateway.policies import make
from isochrone.gateway.replicas import Endpoint, LoadReport
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.resilience.hedging import HedgeRules
from isochrone.gateway.resilience.retry_budget import RetryRules
from isochrone.gateway.resilience.suspects import QuarantineRules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.protocol.headers.orca import ORCA_HEADER, orca_text
from isochrone.settings.wire_limits import WireLimits
from isochrone.simulate.engine import START_NS, Engine
from isochrone.simulate.processes import gateways as simulated
from isochrone.simulate.processes.calls import ANSWERED, FAILED, LOST, MODEL, REFUSED, UNREACHABLE
from isochrone.simulate.processes.gateways import RequestKind, SimulatedAttempt, SimulatedRequest
from isochrone.simulate.processes.worker import SERVING, STOPPED, Worker
from isochrone.simulate.results.tally import Tally
from isochrone.wire.exchange import Head

pytestmark = pytest.mark.interpreted

RESULT = b'{"model_name":"model","model_version":"1","outputs":[]}'
ERROR = b'{"error":"x"}'
JSON = (b"content-type", b"application/json")
MARK = (b"x-isochrone-unprocessed", b"1")
SIMULATED = {"answer": ANSWERED, "fail": FAILED, "reject": REFUSED, "lose": LOST, "refuse": UNREACHABLE}

#: What an instruction says: what to do, the number of the request, the address or the error.
Said = tuple[str, int, str]


def reported(load: int) -> LoadReport:
    return LoadReport(in_flight=load, queue=load // 2, wait_ns=load * MILLISECOND, run_ns=MILLISECOND)


def header(report: LoadReport) -> bytes:
    figures = {
        "named_metrics.in_flight": float(report.in_flight),
        "named_metrics.queue_depth": float(report.queue),
        "named_metrics.estimated_wait_us": report.wait_ns / 1e3,
        "named_metrics.estimated_run_us": report.run_ns / 1e3,
        "named_metrics.draining": 0.0,
    }
    return orca_text(figures)


class Silent(Worker):
    """A simulated worker whose answers the history gives."""

    def arrive(self, now: int, call: Any) -> None: ...

    def abandoned(self, now: int, call: Any) -> None: ...

    def report(self, now: int) -> LoadReport:
        return reported(0)


class Simulation(simulated.Gateway):
    """Notes what it executes."""

    said: list[Said]

    def execute(self, instructions: list[Instruction], now: int) -> None:
        self.said += [words(*each, number=_simulated_number) for each in instructions]
        super().execute(instructions, now)


class Shell(Gateway):
    """The real shell, without tasks: process checks and monitors are the history's."""

    said: list[Said]
    numbers: dict[Request, int]
    checks: list[Endpoint]

    def execute(self, instructions: list[Instruction]) -> None:
        self.said += [words(*each, number=lambda request: self.numbers[request]) for each in instructions]
        super().execute(instructions)

    def _execute_rare(self, do: Do, request: CallerRequest, subject: Any) -> None:
        if do is Do.CHECK:
            self.checks.append(subject)
        elif do is Do.GONE:
            subject.healthy = False
            self.fleet.rebuild()


class Stub:
    """Connections that only keep count."""

    is_crowded = False

    def send(self, head: bytes, body: Any, receiver: Any) -> Stub:
        return self

    def open_whole(self, block: bytes, payload: Any, receiver: Any) -> Stub:
        return self

    def open_stream(self, block: bytes, body: Any, receiver: Any, *, end: bool = True) -> Stub:
        return self

    def release(self, sent: Any) -> None: ...

    def cancel(self) -> None: ...


class Caller:
    is_congested = False

    def __init__(self, head: Head, number: int, arrived: int) -> None:
        # No two are identical, as in a simulation: identical ones share their fate after a crash.
        self.head, self.body, self.arrived = head, b'{"inputs":[%d]}' % number, arrived
        self.owner: Any = None

    def respond(self, status: int, headers: Any, body: Any) -> None: ...


def _simulated_number(request: Request) -> int:
    return cast(SimulatedRequest, request).number


def words(do: Do, request: Request | None, subject: Any, *, number: Any) -> Said:
    if isinstance(subject, Attempt):
        about = subject.replica.endpoint.address
    elif isinstance(subject, Endpoint):
        about = subject.address
    elif isinstance(subject, IsochroneError):
        about = f"{type(subject).__name__}: {subject}"
    else:
        about = ""
    return do.name, number(request) if request is not None else 0, about


class Pair:
    """One history for both."""

    def __init__(self, policy: str, workers: int, rules: ModelRules, seed: int) -> None:
        self.engine = Engine()
        self.now = START_NS
        given_rules = GatewayRules(defaults=replace(rules, policy=policy))
        self.workers = [Silent(number, self.engine, lambda: 0) for number in range(workers)]
        self.simulation = Simulation(
            self.engine, self.workers, lambda random: make(policy, random), 0, given_rules, seed
        )
        self.simulation.said = []
        self.shell = Shell(given_rules, WireLimits(), seed=seed, clock=lambda: self.now)
        self.shell.said, self.shell.numbers, self.shell.checks = [], {}, []
        self._connect()
        self.application = GatewayApplication(self.shell)
        self.tally, self.arrivals = Tally(), 0

    def _connect(self) -> None:
        fleet = self.shell.fleet
        make_member = fleet.make_member

        def stubbed(upstream: Any, now: int) -> Member:
            member = make_member(upstream, now)
            member.connections = Stub()  # type: ignore[assignment]
            member.endpoint.healthy = member.endpoint.reports = True
            member.serves = {MODEL: {"1": ""}}
            return member

        fleet.make_member = stubbed  # type: ignore[method-assign]
        fleet.set_members(map(simulated.upstream_of, self.workers))
        self.shell.outliers.endpoints_changed((each.endpoint for each in fleet.members.values()), self.now)
        fleet.model(MODEL)

    # Events.

    def arrive(self, timeout_ms: int) -> None:
        self.arrivals += 1
        fields = [(b"host", b"gw")]
        if timeout_ms:
            fields.append((b"x-request-timeout-ms", b"%d" % timeout_ms))
        head = Head(b"POST", b"/v2/models/model/infer", tuple(fields))
        caller = Caller(head, self.arrivals, self.now)
        route = self.application.route(head)
        arrive = self.shell.arrive

        def noted(request: CallerRequest) -> None:
            self.shell.numbers[request] = self.arrivals
            arrive(request)

        self.shell.arrive = noted  # type: ignore[method-assign]
        route.handle(cast(Any, caller))
        self.shell.arrive = arrive  # type: ignore[method-assign]
        kind = RequestKind(timeout_ms, "", timeout_ms * MILLISECOND) if timeout_ms else RequestKind(0, "")
        self.simulation.arrive(self.now, 1.0, kind, self.tally)
        self.settle()

    def end(self, which: int, how: str, load: int, dies: bool) -> None:
        """One of the attempts in flight ends. ``dies``: with the process of its worker."""
        ours = [one for request in self.simulation.machine.open for one in request.attempts]
        theirs = [one for request in self.shell.machine.open for one in request.attempts]
        assert len(ours) == len(theirs)
        if not ours:
            return
        mine, real = cast(SimulatedAttempt, ours[which % len(ours)]), cast(UpstreamAttempt, theirs[which % len(ours)])
        worker = self.workers[list(self.shell.fleet.members).index(real.replica.endpoint.address)]
        if dies and how in ("lose", "refuse"):
            worker.state = STOPPED
        report = reported(load)
        asked = ((ORCA_HEADER, header(report)),) if real.asks else ()
        if how == "answer":
            real.whole(200, (JSON, *asked), RESULT, ())
        elif how == "fail":
            real.whole(500, (JSON, *asked), ERROR, ())
        elif how == "reject":
            real.whole(429, (JSON, MARK, *asked), ERROR, ())
        else:
            real.failed(ConnectionLost("the connection is gone", unprocessed=how == "refuse"))
        mine.call.outcome = SIMULATED[how]
        mine.call.report = report if how in ("answer", "fail", "reject") else None
        self.simulation.answered(self.now, mine.call)
        self.settle()

    def health(self, which: int, well: bool) -> None:
        worker = self.workers[which % len(self.workers)]
        if well:
            worker.state = SERVING
        member = list(self.shell.fleet.members.values())[worker.number]
        if member.endpoint.healthy != well:
            member.endpoint.healthy = well
            if well:
                member.endpoint.joined_at = self.now
            self.shell.fleet.rebuild()
            if not well:
                finished(self.shell._leave(member.endpoint, self.now))
        self.simulation.health(self.now, worker, well)
        self.settle()

    def wait(self, milliseconds: int) -> None:
        until = self.now + milliseconds * MILLISECOND
        while self.now < until:
            due = min((request.due_at for request in self.shell.machine.open), default=until)
            self.now = min(until, max(self.now + 1, due))
            self.engine.advance(self.now)
            self.shell.sweep(self.now)
            self.settle()
        for gateway in (self.shell, self.simulation):
            gateway.fleet.refresh(self.now)
        self.shell.execute(self.shell.machine.sweep(self.now))
        self.simulation.execute(self.simulation.machine.sweep(self.now), self.now)
        if milliseconds >= SECOND // MILLISECOND:
            self.shell.judge(self.now)
            self.simulation.judge(self.now)
        self.settle()

    def settle(self) -> None:
        """Process checks that were asked for are over at once."""
        self.engine.advance(self.now)
        while self.shell.checks:
            endpoint = self.shell.checks.pop(0)
            worker = self.workers[list(self.shell.fleet.members).index(endpoint.address)]
            self.shell.execute(self.shell.machine.checked(endpoint, worker.state != STOPPED, self.now))
        assert self.shell.said == self.simulation.said


EVENTS = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from([0, 0, 3, 20, 500])),
    st.tuples(
        st.just("end"),
        st.integers(0, 7),
        st.sampled_from(["answer", "answer", "answer", "fail", "reject", "lose", "refuse"]),
        st.integers(0, 9),
        st.booleans(),
    ),
    st.tuples(st.just("health"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([1, 2, 5, 30, 400, 1500, 2500])),
)
RULES = st.builds(
    ModelRules,
    retries=st.builds(RetryRules, enabled=st.booleans(), idempotent=st.booleans(), attempts=st.integers(1, 4)),
    admission=st.builds(AdmissionRules, enabled=st.booleans()),
    # A hedge from the first answer on: histories are short.
    hedge=st.builds(HedgeRules, enabled=st.booleans(), ratio=st.just(1.0), least_seen=st.just(0)),
    quarantine=st.builds(QuarantineRules, enabled=st.booleans()),
    balancer=st.builds(BalancerRules, slow_start_ns=st.just(0), panic_threshold=st.sampled_from([0.0, 0.5])),
)


@given(
    policy=st.sampled_from(["round_robin", "least_connections", "power_of_two", "peak_ewma", "prequal"]),
    workers=st.integers(1, 4),
    rules=RULES,
    seed=st.integers(0, 1000),
    history=st.lists(EVENTS, min_size=1, max_size=25),
)
def test_equal_histories_give_equal_instructions(
    policy: str, workers: int, rules: ModelRules, seed: int, history: list[tuple[Any, ...]]
) -> None:
    pair = Pair(policy, workers, rules, seed)
    for event, *arguments in history:
        getattr(pair, event)(*arguments)
    replicas = [gateway.fleet.model(MODEL).current.replicas for gateway in (pair.shell, pair.simulation)]
    for real, mine in zip(replicas[0].values(), replicas[1].values(), strict=True):
        for name in ("in_flight", "latency_ns", "error_rate", "report", "reported_at", "weight"):
            assert getattr(real, name) == pytest.approx(getattr(mine, name)), name


def test_histories_reach_every_instruction_that_a_simulation_knows() -> None:
    """Otherwise agreement would say little."""
    pair = Pair("round_robin", 3, ModelRules(balancer=BalancerRules(slow_start_ns=0)), 1)
    pair.arrive(0)
    pair.end(0, "lose", 0, True)
    pair.arrive(5)
    pair.wait(30)
    pair.arrive(0)
    pair.end(1, "answer", 3, False)
    pair.arrive(0)
    pair.health(0, False)
    pair.health(1, False)
    pair.health(2, False)
    found = {said[0] for said in pair.shell.said}
    assert found >= {"SEND", "ANSWER", "REJECT", "CANCEL", "CHECK", "GONE"}


def test_histories_reach_hedges() -> None:
    rules = ModelRules(balancer=BalancerRules(slow_start_ns=0), hedge=HedgeRules(ratio=1.0, least_seen=0))
    pair = Pair("round_robin", 3, rules, 1)
    for _ in range(4):
        pair.arrive(0)
        pair.end(0, "answer", 0, False)
    pair.wait(400)
    pair.arrive(500)
    pair.wait(30)
    assert [gateway.fleet.model(MODEL).hedges for gateway in (pair.shell, pair.simulation)] == [1, 1]
