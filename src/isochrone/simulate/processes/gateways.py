"""A simulated gateway: the real fleet, request machine and policies of a gateway; connections and time are simulated.

It executes the instructions of ``RequestMachine`` as the gateway's shell does: it sends calls over the simulated
network, probes, cancels, checks processes, and counts how every request ended. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, cast

from isochrone.clock import NEVER
from isochrone.errors import ConnectionLost, DeadlineExceeded, IsochroneError
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.fleet.member import Member
from isochrone.gateway.fleet.served_model import policy_of_rules
from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.replicas import Endpoint, LoadReport, Replica
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.machine import RequestMachine
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Attempt
from isochrone.gateway.resilience.outliers import Outliers
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.traffic.fields import Fields
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.settings.wire_limits import WireLimits
from isochrone.simulate.engine import Engine
from isochrone.simulate.processes.calls import ANSWERED, FAILED, LOST, MODEL, REFUSED, TOO_LATE, UNREACHABLE, Call
from isochrone.simulate.processes.due_requests import DueRequests, WatchedRequest
from isochrone.simulate.processes.worker import ERRING, SERVING, STOPPED, Worker
from isochrone.simulate.results.tally import Tally

_VERSION = "1"
_LIMITS = WireLimits()
_OUTCOMES = {
    ANSWERED: Outcome.ANSWERED,
    REFUSED: Outcome.NOT_BEGUN,
    TOO_LATE: Outcome.NOT_BEGUN,
    FAILED: Outcome.FAILED,
}


class RequestKind:
    """What requests of one kind have in common."""

    __slots__ = ("deadline_ns", "index", "keys", "model", "name", "priority", "rows")

    def __init__(
        self,
        index: int,
        name: str,
        deadline_ns: int = NEVER,
        rows: int = 1,
        priority: int = 0,
        agents: int = 0,
        model: str = MODEL,
    ) -> None:
        self.index = index
        self.name = name
        #: From arrival at the gateway; NEVER: none.
        self.deadline_ns = deadline_ns
        self.rows = rows
        self.priority = priority
        self.model = model
        #: Affinity goes by these: one per agent.
        self.keys: Sequence[bytes] = [b"agent-%d" % number for number in range(agents)]


class _NoFields:
    def get(self, name: bytes) -> bytes | None:
        return None


_NO_FIELDS = _NoFields()


class SimulatedAttempt(Attempt):
    """One sending of a request; ``call`` is what its worker has of it."""

    call: Call


class SimulatedRequest(WatchedRequest):
    """A request without bytes."""

    attempt_type: ClassVar[type[Attempt]] = SimulatedAttempt

    work: float
    tally: Tally

    @property
    def head(self) -> Fields:
        return _NO_FIELDS

    @property
    def body(self) -> bytes:
        return b""

    def take_fingerprint(self) -> bytes:
        return b"%d" % self.number  # no two requests are identical


class SimulatedFleet(Fleet):
    """A fleet whose members are simulated workers."""

    #: By address of a worker: its models, each with its versions and their digests.
    indexes: Mapping[str, Mapping[str, Mapping[str, str]]]

    def make_member(self, upstream: Upstream, now: int) -> Member:
        member = Member(upstream, cast(Any, None), now)
        member.endpoint.healthy = True
        member.endpoint.reports = True
        member.serves = self.indexes[upstream.address]
        return member


class Gateway:
    """One gateway process."""

    def __init__(
        self,
        engine: Engine,
        workers: Sequence[Worker],
        make_policy: Callable[[Random], Policy] | None,
        client_ns: int = 0,
        rules: GatewayRules | None = None,
        seed: int = 0,
    ) -> None:
        """``make_policy``: in place of the policies of the rules."""
        self.engine = engine
        self._workers = workers
        #: From client to gateway and back.
        self._client_ns = client_ns
        rules = rules or GatewayRules()
        self._outliers = Outliers(rules.outliers)
        self.fleet = SimulatedFleet(
            rules,
            _LIMITS,
            self._outliers,
            seed,
            clock=lambda: engine.now,
            make_policy=policy_of_rules if make_policy is None else lambda _, random: make_policy(random),
        )
        self.fleet.indexes = _indexes(workers)
        self.fleet.set_members(upstream_of(worker) for worker in workers)
        self._numbers = {address: worker.number for address, worker in zip(self.fleet.members, workers, strict=True)}
        self._outliers.endpoints_changed((member.endpoint for member in self.fleet.members.values()), engine.now)
        models = dict.fromkeys(model for worker in workers for model in worker.models)
        self._served = {model: self.fleet.model(model) for model in models}
        #: Of simulations that have one model.
        self.served = next(iter(self._served.values()), None) or self.fleet.model(MODEL)
        self.replicas: list[Replica] = list(self.served.current.replicas.values())
        self.machine = RequestMachine(self.fleet)
        self._due = DueRequests()
        #: The next look at them.
        self._armed_for = NEVER
        self._arrivals = 0
        self.probes = 0

    @property
    def open(self) -> int:
        """Requests that are not over."""
        return len(self.machine.open)

    @property
    def policy(self) -> Policy:
        return self.served.current.balancer.policy

    # Events.

    def arrive(self, now: int, work: float, kind: RequestKind, tally: Tally, key: bytes = b"") -> None:
        """A request from a client."""
        tally.offered += 1
        request = SimulatedRequest(now)
        request.served = self._served.get(kind.model) or self.served
        request.work = work
        request.tally = tally
        self._arrivals = request.number = self._arrivals + 1
        if kind.deadline_ns != NEVER:
            request.deadline = now + kind.deadline_ns - self._client_ns
        # The prompts of one agent begin alike.
        request.demand = Demand(key, request.deadline, kind.rows, kind.priority, prompt=key)
        self.execute(self.machine.arrive(request, now), now)
        if not request.over:
            self._watch(request)

    def answered(self, now: int, call: Call) -> None:
        """A worker's answer, or the loss of a connection."""
        attempt = call.attempt
        if call.over or attempt is None:
            return
        call.over = True
        request, outcome = attempt.request, call.outcome
        if outcome in (LOST, UNREACHABLE):
            error = ConnectionLost("the connection is gone", unprocessed=outcome == UNREACHABLE)
            self.execute(self.machine.lost(request, attempt, error, now), now)
        else:
            # Workers report their load when they are asked to.
            report = call.report if attempt.asks else None
            self.execute(self.machine.answered(request, attempt, _OUTCOMES[outcome], now, report), now)

    def _watch(self, request: SimulatedRequest) -> None:
        """Call the machine when a request is due."""
        if self._due.watch(request):
            self._arm()

    def _arm(self) -> None:
        first = self._due.next
        if first < self._armed_for:
            self._armed_for = first
            self.engine.at(first, self._look)

    def _look(self, now: int, _: None) -> None:
        """Some requests may be due."""
        if now != self._armed_for:
            return  # an earlier look has done it
        self._armed_for = NEVER
        for request in cast("list[SimulatedRequest]", self._due.take(now)):
            if not request.over and now >= request.due_at:
                self.execute(self.machine.due(request, now), now)
            if not request.over:
                self._watch(request)
        self._arm()

    def health(self, now: int, worker: Worker, well: bool) -> None:
        """Active health checks found a change."""
        endpoint = self.fleet.members[upstream_of(worker).address].endpoint
        if endpoint.healthy == well:
            return
        endpoint.healthy = well
        if well:
            endpoint.joined_at = now
        self.fleet.rebuild()
        if not well:
            self.execute(self.machine.endpoint_lost(endpoint, now), now)
            for request in self.machine.open:
                self._watch(cast(SimulatedRequest, request))

    # Instructions.

    def execute(self, instructions: list[Instruction], now: int) -> None:
        for do, request, subject in instructions:
            if do is Do.SEND:
                self._send(subject, now)
            elif do is Do.ANSWER:
                self._settle(cast(SimulatedRequest, request), subject.call.outcome, now)
            elif do is Do.CANCEL:
                self._cancel(subject, now)
            elif do is Do.REJECT:
                self._reject(cast(SimulatedRequest, request), subject, now)
            elif do is Do.PROBE:
                # Probes of one request travel together: one event there and one back, not six.
                self.probes += len(subject)
                self.engine.at(now + self._worker(subject[0].endpoint).delay(), self._probe, tuple(subject))
            elif do is Do.CHECK:
                self.engine.at(now + self._worker(subject).delay(), self._check, subject)
            elif do is Do.GONE:
                subject.healthy = False
                self.fleet.rebuild()

    def _worker(self, endpoint: Endpoint) -> Worker:
        return self._workers[self._numbers[endpoint.address]]

    def _send(self, attempt: SimulatedAttempt, now: int) -> None:
        request = cast(SimulatedRequest, attempt.request)
        demand = request.demand
        call = attempt.call = Call(request.arrived, request.work, self, request.tally, request.deadline, demand.rows)
        call.priority = demand.priority
        call.model = request.served.name
        call.attempt = attempt
        if len(request.tried) > 1 and not attempt.is_hedge:
            request.tally.retried += 1
        worker = self._worker(attempt.replica.endpoint)
        self.engine.at(now + worker.delay(), worker.arrive, call)
        self._watch(request)

    def _cancel(self, attempt: SimulatedAttempt, now: int) -> None:
        attempt.call.over = True
        worker = self._worker(attempt.replica.endpoint)
        self.engine.at(now + worker.delay(), worker.abandoned, attempt.call)

    def _reject(self, request: SimulatedRequest, error: IsochroneError, now: int) -> None:
        if isinstance(error, DeadlineExceeded):
            self._settle(request, TOO_LATE if request.tried else REFUSED, now)
        else:
            self._settle(request, FAILED, now)

    def _settle(self, request: SimulatedRequest, outcome: int, now: int) -> None:
        """The client knows."""
        tally = request.tally
        if outcome == REFUSED:
            tally.rejected += 1
        elif outcome in (ANSWERED, TOO_LATE):
            if outcome == ANSWERED and now <= request.deadline:
                tally.in_time += 1
            else:
                tally.late += 1
            tally.latency.add(now - request.arrived + self._client_ns)
        else:
            tally.failed += 1

    def _probe(self, now: int, asked: tuple[Replica, ...]) -> None:
        """Probes are at their workers. One that stopped or stalls does not answer."""
        reports: list[tuple[Replica, LoadReport]] = []
        for replica in asked:
            worker = self._worker(replica.endpoint)
            if worker.state in (SERVING, ERRING):
                reports.append((replica, worker.report(now)))
        if reports:
            self.engine.at(now + self._worker(asked[0].endpoint).delay(), self._probed, reports)

    def _probed(self, now: int, reports: list[tuple[Replica, LoadReport]]) -> None:
        for replica, report in reports:
            replica.endpoint.heard_at = now
            self.fleet.reported(replica.endpoint.handle, report, now)

    def _check(self, now: int, endpoint: Endpoint) -> None:
        """The question whether a process lives is at its door."""
        lives = self._worker(endpoint).state != STOPPED
        self.engine.at(now + self._worker(endpoint).delay(), self._checked, (endpoint, lives))

    def _checked(self, now: int, found: tuple[Endpoint, bool]) -> None:
        self.execute(self.machine.checked(*found, now), now)

    # By the clock.

    @property
    def weighs_utilisation(self) -> bool:
        """Whether a policy goes by the workers' utilisation."""
        return any(hasattr(served.current.balancer.policy, "utilised") for served in self._served.values())

    def utilised(self, shares: Sequence[float]) -> None:
        """The utilisation of each worker, by its number, for policies that go by it."""
        for served in self._served.values():
            utilised: Any = getattr(served.current.balancer.policy, "utilised", None)
            if utilised is not None:
                for replica in served.current.replicas.values():
                    utilised(replica, shares[self._numbers[replica.endpoint.address]])

    def close(self, now: int) -> None:
        """The run is over: requests that still wait have failed."""
        for request in list(self.machine.open):
            self.machine.cancelled(request, now)
            self._settle(cast(SimulatedRequest, request), FAILED, now)

    def sweep(self, now: int) -> None:
        """Ten times a second: ejections end, newcomers grow, suspects go on."""
        self.fleet.refresh(now)
        self.execute(self.machine.sweep(now), now)

    def judge(self, now: int) -> None:
        """Once a second: find outliers."""
        if self._outliers.tick(now):
            self.fleet.refresh(now)


def upstream_of(worker: Worker) -> Upstream:
    return Upstream(f"worker-{worker.number}", 8001, 8001, tier=worker.tier, device=worker.device)


def _indexes(workers: Sequence[Worker]) -> dict[str, Mapping[str, Mapping[str, str]]]:
    """What each worker serves, by its address. Workers with the same models share one object: the fleet compares by
    identity first."""
    known: dict[tuple[str, ...], Mapping[str, Mapping[str, str]]] = {}
    found = {}
    for worker in workers:
        models = tuple(worker.models)
        found[upstream_of(worker).address] = known.setdefault(models, {model: {_VERSION: ""} for model in models})
    return found
