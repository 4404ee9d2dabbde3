"""The shell around the request machine: codecs and connections report events, the machine decides, and the shell sends,
answers, cancels, probes and checks.

What may be long, as moving the requests of a lost endpoint, is done in steps, each in a turn of the loop of its own:
requests go on between them. ``gateway`` adds what happens by the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import Internal, IsochroneError
from isochrone.gateway.admittance import refusal
from isochrone.gateway.evaluation.sampling import Sampling
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.fleet.member import Member
from isochrone.gateway.flights.recording import FlightRecording
from isochrone.gateway.garbage import ReplicaFreezer
from isochrone.gateway.housekeeping import Housekeeping, Steps, in_turns
from isochrone.gateway.monitoring.members import MonitoredMembers
from isochrone.gateway.monitoring.monitor import MonitorRules, is_alive
from isochrone.gateway.monitoring.probes import probe
from isochrone.gateway.replicas import Endpoint
from isochrone.gateway.request_times import RequestTimes, ended_as
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.machine import CheckedLoss, Destination, RequestMachine
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Request
from isochrone.gateway.requests.suspected import ADVICE, Quarantining
from isochrone.gateway.resilience.conformance import ForeignAnswer
from isochrone.gateway.resilience.outliers import Outliers
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.protocol.audited_calls import count_refusal
from isochrone.secure.access.permissions import INFERENCE
from isochrone.settings.wire_limits import WireLimits

if TYPE_CHECKING:
    from isochrone.gateway.access_lines import GatewayAccessLines
    from isochrone.gateway.audit import GatewayAudit
    from isochrone.gateway.caller_requests import CallerRequest, CallerStream, UpstreamAttempt
    from isochrone.gateway.tracing import GatewayTrace
    from isochrone.secure.audit.audit import Audit
    from isochrone.wire.exchange import Exchange

log = structlog.get_logger(__name__)

#: The states of endpoints are looked at no more often than this: time alone changes them slowly.
LOOK_NS = 100 * MILLISECOND
#: Requests that leave a lost endpoint in one turn, and the time after which no further one does: one takes 50 µs, where
#: a model of many replicas is looked at first 0.5 ms. And requests in flight that are searched for them: 0.3 µs each.
_LEAVING_PER_TURN, _LEAVING_NS, _SEARCHED_PER_TURN = 16, MILLISECOND // 2, 1024
_SEND, _ANSWER, _REJECT, _CANCEL, _CUT_OFF = Do.SEND, Do.ANSWER, Do.REJECT, Do.CANCEL, Do.CUT_OFF
_ANSWERED, _FOREIGN, _NOT_BEGUN, _REJECTED = (
    Outcome.ANSWERED,
    Outcome.FOREIGN,
    Outcome.NOT_BEGUN,
    Outcome.REJECTED,
)


class RequestShell:
    """One fleet, the machine of its requests, and what carries out the machine's instructions."""

    def __init__(
        self,
        rules: GatewayRules,
        limits: WireLimits,
        monitoring: MonitorRules | None = None,
        seed: int | None = None,
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self.clock = clock
        self.limits = limits
        self.outliers = Outliers(rules.outliers)
        self.fleet = Fleet(rules, limits, self.outliers, seed, clock=clock)
        #: Of live requests, while somebody asks for them.
        self.sampling = Sampling()
        self.machine = RequestMachine(self.fleet)
        #: How long requests take, for the metrics page.
        self.times = RequestTimes(self.fleet)
        self.machine.waiting.on_change = self._waiting_changed
        #: Streaming calls, from their opening to their end.
        self.streams: set[CallerStream] = set()
        #: No stream's deadline passes before this instant.
        self._streams_due = 0
        #: Called with what happened, the model it is about, and a sentence: for the fleet's events.
        self.on_event: Callable[[str, str, str], None] | None = None
        #: Called with a model whose requests wait for a worker from now on (True), or of which none waits any more. It
        #: must return at once: a request is being placed.
        self.on_waiting_changed: Callable[[str, bool], None] | None = None
        self.monitoring = monitoring or MonitorRules()
        self._freezer = ReplicaFreezer()
        #: What may be long is done here, a step per turn of the loop.
        self.housekeeping = Housekeeping()
        self._members = MonitoredMembers(
            self.fleet, self.outliers, self.monitoring, self.housekeeping, self._member_lost, self._freezer.left, clock
        )
        #: None: requests are not recorded.
        self.flights: FlightRecording | None = None
        #: None: requests are not traced. Set before the first route is made.
        self.tracing: GatewayTrace | None = None
        #: None: requests are not logged.
        self.access_lines: GatewayAccessLines | None = None
        #: Whether requests need a grant (``protocol.applications.authenticated``). Set before the first route is made.
        self.is_guarded = False
        #: None: requests are not recorded in an audit log.
        self.audit: GatewayAudit | None = None
        #: Records control calls before they take effect, and what access rules refuse; None: nothing does.
        self.change_audit: Audit | None = None
        self._tasks = BackgroundTasks()
        #: Done when a request or a stream comes while nothing is under way; None: something is.
        self.resting: asyncio.Future[None] | None = None

    # Events.

    def stream_opened(self, stream: CallerStream) -> None:
        """A streaming call begins; its first message may be a while away."""
        self.streams.add(stream)
        self._streams_due = min(self._streams_due, stream.deadline)
        self.wake()

    def arrive(self, request: CallerRequest) -> None:
        """A codec has read a request."""
        if self.resting is not None:
            self.wake()
        if self.is_guarded and (denied := refusal(request)) is not None:
            self.count_refusal(request.exchange, denied)
            self._refuse(request, denied)
            return
        if self.audit is not None and (unrecorded := self.audit.refusal()) is not None:
            self._refuse(request, unrecorded)
            return
        if self.sampling.on:
            self._offer(request)
        self.execute(self.machine.arrive(request, request.arrived))

    def count_refusal(self, exchange: Exchange, error: IsochroneError) -> None:
        """Access rules refuse a request for inference."""
        if self.change_audit is not None:
            count_refusal(self.change_audit, exchange.head.grant, INFERENCE, exchange, error)

    def _refuse(self, request: CallerRequest, error: IsochroneError) -> None:
        """A request that must not begin."""
        request.served.requests += 1
        request.served.reject(error)
        request.over = True
        self.execute([(_REJECT, request, error)])

    def _offer(self, request: CallerRequest) -> None:
        samples = self.sampling.on.get(request.served.name)
        if samples is not None and request.kind is Kind.STATELESS:
            request.offer(samples)

    def answered(self, attempt: UpstreamAttempt) -> None:
        """An endpoint's answer is whole."""
        if attempt.over:
            return
        request: CallerRequest = attempt.request  # type: ignore[assignment]
        outcome = request.outcome(attempt)
        if outcome is _FOREIGN:
            self.answered_foreign(attempt)
            return
        if outcome is _ANSWERED and not attempt.asks:
            # Nearly all answers.
            now = attempt.answered_at = self.clock()
            self.execute(self.machine.answered(request, attempt, outcome, now))
            return
        if outcome is not _ANSWERED and self.flights is not None:
            self.flights.attempt_ended(attempt, outcome.name.lower(), self.clock())
        if outcome is not _ANSWERED and self.tracing is not None:
            self.tracing.attempt_ended(attempt, outcome.name.lower())
        report = request.load_report(attempt) if attempt.asks else None
        is_rejected = outcome is _NOT_BEGUN or outcome is _REJECTED
        is_version_gone = is_rejected and request.is_version_gone(attempt)
        if outcome is not _ANSWERED:
            attempt.ended_as = ended_as(request, attempt, is_rejected=is_rejected)
        now = attempt.answered_at = self.clock()
        self.execute(self.machine.answered(request, attempt, outcome, now, report, is_version_gone))

    def answered_foreign(self, attempt: UpstreamAttempt) -> None:
        """An endpoint's answer does not follow the protocol: it counts as none, and is never passed on."""
        self.lost(attempt, ForeignAnswer(f"its answer is not the Open Inference Protocol's: {attempt.foreign}"))

    def lost(self, attempt: UpstreamAttempt, error: IsochroneError) -> None:
        """A connection broke, or was never made."""
        if not attempt.over:
            if self.tracing is not None:
                self.tracing.lost(attempt, error)
            if self.flights is not None:
                self.flights.attempt_ended(attempt, error.code, self.clock())
            self.execute(self.machine.lost(attempt.request, attempt, error, self.clock()))

    def streaming(self, attempt: UpstreamAttempt) -> None:
        """An answer is being passed on."""
        request: CallerRequest = attempt.request  # type: ignore[assignment]
        report = request.load_report(attempt) if attempt.asks else None
        if report is not None:
            # In its head: when the stream ends, it will be old.
            attempt.asks = False
        self.execute(self.machine.streaming(request, attempt, self.clock(), report))

    def cancelled(self, request: CallerRequest, error: IsochroneError | None = None) -> None:
        """A caller has gone. ``error``: it has not, but its codec ends the call with this."""
        if self.tracing is not None:
            self.tracing.broken_off(request, error)
        if self.access_lines is not None and not request.over:
            self.access_lines.broken_off(request, error)
        if self.audit is not None and not request.over:
            self.audit.broken_off(request, error)
        if request.over:
            self.execute(self.machine.cancelled(request, self.clock()))
            return
        now = self.clock()
        self.times.broken_off(request, error, now)
        flights = self.flights
        # Before: a connection drops the body with the call.
        opening = b"" if flights is None else request.opening_bytes()
        self.execute(self.machine.cancelled(request, now))
        # After: the attempts that were given up belong to the record.
        if flights is not None:
            flights.broken_off(request, error, opening, now)

    def release(self) -> int:
        """A strict switch is over: requests that waited for it go on; how many."""
        waiting = self.machine.held
        self.execute(self.machine.release(self.clock()))
        return waiting

    def reject_held(self, reason: str) -> None:
        """A strict switch takes too long for the requests that wait for it."""
        self.execute(self.machine.reject_held(reason, self.clock()))

    def close_waiting(self) -> None:
        """The gateway stops: a worker that would be ready later is of no use to requests that wait here."""
        self.execute(self.machine.close_waiting("the gateway is stopping", self.clock()))

    def waiting_models(self) -> dict[str, int]:
        """By model: requests that wait for a worker, at least 1."""
        return self.machine.waiting.counts()

    def _waiting_changed(self, model: str, waits: bool) -> None:
        if self.on_waiting_changed is not None:
            self.on_waiting_changed(model, waits)

    def wake(self) -> None:
        """Something is under way from now on, and timers run again."""
        if self.resting is None or self.resting.done():
            return
        self.resting.set_result(None)
        now = self.clock()
        changes = self.fleet.endpoint_changes
        if now >= changes.look_due and now - changes.looked_at >= LOOK_NS:
            # An ejection or a slow start may have ended during the rest: the request that ends it is placed by that.
            # Otherwise it does not wait for the look, which takes ms where there are thousands of workers.
            self.fleet.look(now)

    # Instructions.

    def execute(self, instructions: list[Instruction]) -> None:
        if self.tracing is not None:
            self.tracing.note(instructions)
        if self.access_lines is not None:
            self.access_lines.note(instructions)
        if self.audit is not None:
            self.audit.note(instructions)
        caller: Any
        flights = self.flights
        for do, caller, subject in instructions:
            try:
                if do is _SEND:
                    if flights is not None:
                        flights.sending(subject)
                    caller.send(subject)
                    if not caller.sent_at:
                        caller.sent_at = self.clock()
                elif do is _ANSWER:
                    # Before: a connection drops the body with the answer.
                    opening = b"" if flights is None else caller.opening_bytes()
                    caller.answer(subject)
                    now = self.clock()
                    self.times.answered(caller, subject, now)
                    if flights is not None:
                        flights.answered(caller, subject, opening, now)
                elif do is _CANCEL:
                    if flights is not None:
                        flights.attempt_ended(subject, subject.given_up or "cancelled", self.clock())
                    subject.cancel()
                elif do is _REJECT:
                    opening = b"" if flights is None else caller.opening_bytes()
                    caller.reject(subject)
                    now = self.clock()
                    self.times.rejected(caller, subject, now)
                    if flights is not None:
                        flights.rejected(caller, subject, opening, now)
                elif do is _CUT_OFF:
                    opening = b"" if flights is None else caller.opening_bytes()
                    caller.cut_off(subject)
                    now = self.clock()
                    self.times.rejected(caller, subject, now)
                    if flights is not None:
                        flights.rejected(caller, subject, opening, now)
                else:
                    self._execute_rare(do, caller, subject)
            except Exception as error:
                # A fault of ours with one request must not touch the others.
                log.error("an instruction failed unexpectedly", instruction=do.name, exc_info=error)
                if do is _SEND:
                    self.lost(subject, Internal(f"{type(error).__name__}: {error}"))
                elif do is _ANSWER or do is _REJECT or do is _CUT_OFF:
                    self._abort(caller)

    def _execute_rare(self, do: Do, request: CallerRequest | None, subject: Any) -> None:
        if do is Do.PROBE:
            probe(self.fleet, subject, self.clock())
        elif do is Do.LOOK:
            self.look_at(subject.address, self.clock())
        elif do is Do.COPY:
            self._copy(cast("CallerRequest", request), subject)
        elif do is Do.FOREIGN:
            self._foreign_answer(subject.replica.endpoint, subject.foreign)
        elif do is Do.CHECK:
            self._tasks.start(self._check(subject))
        elif do is Do.GONE:
            log.warning("a worker's process is gone", worker=subject.address)
            self._members.process_gone(subject)
        elif do is Do.QUARANTINED:
            self._quarantined(subject)
        elif do is Do.RESUME:
            cast("CallerStream", request).resume()

    def _copy(self, request: CallerRequest, to: Destination) -> None:
        copy = request.copy(to.served)
        self.execute(self.machine.arrive_copy(copy, to, copy.arrived))

    def _foreign_answer(self, endpoint: Endpoint, reason: str) -> None:
        member: Member = endpoint.handle
        now = self.clock()
        member.foreign_answers += 1
        if now - member.foreign_at > SECOND:
            member.foreign_at = now
            log.warning("a worker's answer is not the protocol's", worker=endpoint.address, reason=reason)
        self.look_at(endpoint.address, now)

    async def _check(self, endpoint: Endpoint) -> None:
        lives = True
        try:
            upstream = endpoint.handle.upstream
            lives = await is_alive(upstream, self.monitoring.timeout, self.fleet.tls_of(upstream)[0])
        except Exception as error:
            # Requests that wait for the result must not wait for ever.
            log.error("checking a worker failed unexpectedly", worker=endpoint.address, exc_info=error)
        instructions, losses = self.machine.take_check(endpoint, lives, self.clock())
        self.execute(instructions)
        await in_turns(self._go_on(losses))
        self.execute(self.machine.pump(self.clock()))

    def _go_on(self, losses: Sequence[CheckedLoss]) -> Steps[None]:
        """Requests whose connections broke are sent again, or given up."""
        left, began = 0, self.clock()
        for loss in losses:
            if left >= _LEAVING_PER_TURN or self.clock() - began > _LEAVING_NS:
                yield
                left, began = 0, self.clock()
            self._guarded(loss.loss.request, partial(self.machine.go_on, loss, self.clock()))
            left += 1

    def _quarantined(self, case: Quarantining) -> None:
        fingerprint = case.key.fingerprint.hex()
        log.warning(
            "a request is quarantined",
            model=case.key.model,
            version=case.key.version,
            fingerprint=fingerprint,
            workers=case.workers,
            seconds=case.seconds,
        )
        if self.on_event is not None:
            which = f"version {case.key.version or 'unnamed'}, fingerprint {fingerprint}"
            where = f"in flight when processes at {', '.join(case.workers)} were lost"
            self.on_event(
                "request quarantined",
                case.key.model,
                f"{which}: {where}; rejected for {case.seconds:g} s; {ADVICE}",
            )

    def _abort(self, caller: CallerRequest) -> None:
        """A caller that cannot be answered must not wait for ever."""
        try:
            caller.abort()
        except Exception as error:
            log.error("a caller could not be cut off", exc_info=error)

    def _guarded(self, request: Request, event: Callable[[], list[Instruction]]) -> None:
        try:
            self.execute(event())
        except Exception as error:
            # A fault of ours with one request must not end the sweep: all others' deadlines hang on it.
            log.error("a request failed unexpectedly", exc_info=error)
            self.machine.open.pop(request, None)
            request.over = True
            self._abort(cast("CallerRequest", request))

    # Workers.

    def look_at(self, address: str, now: int) -> None:
        """A worker answered as if it served something else than is known here."""
        self._members.look_at(address, now)

    def _member_lost(self, member: Member) -> None:
        # It is not healthy any more, so nothing is placed there from now on; what it has may be long to move.
        if member.endpoint.in_flight:
            self._tasks.start(in_turns(self._leave(member.endpoint, self.clock())))

    def _leave(self, endpoint: Endpoint, lost_at: int) -> Steps[None]:
        """Requests in flight at an endpoint that was lost go elsewhere where they may."""
        machine = self.machine
        left, began = 0, self.clock()
        for number, request in enumerate(list(machine.open), 1):
            if not request.over and machine.is_at(request, endpoint, lost_at):
                if left >= _LEAVING_PER_TURN or self.clock() - began > _LEAVING_NS:
                    yield
                    left, began = 0, self.clock()
                self._guarded(request, partial(machine.leave_lost, request, endpoint, lost_at, self.clock()))
                left += 1
            if not number % _SEARCHED_PER_TURN:
                yield
                left, began = 0, self.clock()
