"""The request machine: the life of every request of one gateway, from arrival to answer. Pure.

Events come in by the methods, each with the time; instructions come out as a list, in order. The shell executes them
after the event, so the machine is consistent whenever an instruction causes the next event. The machine owns version
pinning, placement, admission, quotas, circuit breakers, retries, hedges, deadlines, copies for shadows, suspects and
the counts of evaluations. It never waits, never reads a clock and never touches a connection. Every request that
arrives gets exactly one ANSWER, REJECT or CUT_OFF, unless its caller has gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from isochrone.clock import NEVER, SECOND
from isochrone.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Internal,
    IsochroneError,
    NoWorkerReady,
    Quarantined,
    Unavailable,
)
from isochrone.gateway.replicas import Endpoint, LoadReport
from isochrone.gateway.requests import accounts, placing, quota_accounts
from isochrone.gateway.requests.dividing import end_division
from isochrone.gateway.requests.further_attempts import FurtherAttempts, named
from isochrone.gateway.requests.held import Held
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.repeating import may_repeat
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.requests.suspected import Loss
from isochrone.gateway.resilience.retry_budget import Kind

if TYPE_CHECKING:
    from isochrone.gateway.fleet.fleet import Fleet
    from isochrone.gateway.fleet.replica_set import ReplicaSet
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.traffic.shadow import Shadow

_SEND, _ANSWER = Do.SEND, Do.ANSWER
_NOT_BEGUN, _REJECTED, _FAILED = Outcome.NOT_BEGUN, Outcome.REJECTED, Outcome.FAILED
#: Requests in flight are looked through at least this often: less than the patience with a silent endpoint.
_LOOK_NS = accounts.PATIENCE_NS // 2
#: A copy for a shadow is given up after so long.
_COPY_NS = 10 * SECOND
#: Requests that go on in one turn of the loop when a worker is ready: some 50 µs each.
_WAITING_PER_TURN = 16


class Destination(NamedTuple):
    """Where a copy goes."""

    shadow: Shadow
    served: ServedModel
    replica_set: ReplicaSet


class CheckedLoss(NamedTuple):
    """A loss at an endpoint that was checked since. ``quarantined``: the rejection of a request that must not go on."""

    loss: Loss
    process_ended: bool
    quarantined: Quarantined | None = None


class RequestMachine(FurtherAttempts):
    """The requests of one gateway, and every event of their lives."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        #: By model: requests that wait for a strict switch.
        self._held: dict[str, Held] = {}

    # Arrival.

    def arrive(self, request: Request, now: int) -> list[Instruction]:
        """A codec has read a request."""
        served = request.served
        served.requests += 1
        served.budget.unbooked += 1
        return self._admit(request, now)

    def _admit(self, request: Request, now: int, *, waited: bool = False) -> list[Instruction]:
        """Fix the version of a request and place it. ``waited``: it was the first of those that wait for a worker."""
        served = request.served
        plain = served.plain
        if plain is not None and not request.version and request.asked_epoch is None:
            request.replica_set = plain
        else:
            try:
                if not self._is_versioned(request):
                    return []
            except IsochroneError as error:
                if request.granted is not None:
                    quota_accounts.leave(request, now)
                served.reject(error)
                request.over = True
                return [(Do.REJECT, request, error)]
        self.open[request] = None
        if served.commitment is not None:
            request.epoch = self._fleet.epoch
        if request.deadline != NEVER:
            request.due_at = request.deadline
        try:
            if served.suspected and request.may_be_suspect:
                self.suspected.examine(request, now)
            if served.quotas and request.granted is None and request.is_inference:
                quota_accounts.enter(request, now)
            if served.has_waiting and not waited and self._stands_behind(request, now):
                return []
            if request.suspect is not None and not placing.is_of_sequence(request):
                self.next_due = min(self.next_due, request.due_at)
                self.suspected.wait(request)
                return self.pump(now)
            if served.hedge_delay_ns and _is_hedged(request) and request.suspect is None:
                request.hedge_at = now + served.hedge_delay_ns
                if request.hedge_at < request.deadline:
                    request.due_at = request.hedge_at
            if request.due_at < self.next_due:
                self.next_due = request.due_at
            try:
                replica = placing.place(request, now)
            except IsochroneError as error:
                if isinstance(error, NoWorkerReady) and self._wait_for_worker(request, now):
                    return []
                # By what is known of the workers that have this version: one too slow for deadlines is rejected here.
                self._count_failure(request)
                raise
        except IsochroneError as error:
            served.reject(error)
            return [*self._finish(request, now), (Do.REJECT, request, error)]
        instructions: list[Instruction] = [(_SEND, request, accounts.begin(request, replica, now))]
        policy = request.replica_set.balancer.policy
        if policy.wants_probes and (probes := policy.probes(now)):
            instructions.append((Do.PROBE, None, probes))
        if served.shadow is not None and request.suspect is None and request.is_repeatable:
            self._copy(request, served.shadow, instructions)
        return instructions

    def _stands_behind(self, request: Request, now: int) -> bool:
        """Whether a request waits behind others that wait for a worker; raises if too many do."""
        return self.waiting.has_before(request) and self._wait_for_worker(request, now)

    def _is_versioned(self, request: Request) -> bool:
        """Fix the version of a request; False: it waits for a strict switch."""
        served = request.served
        if request.version:
            request.replica_set = served.replica_set(request.version)
        elif served.is_held:
            self.hold(request, served)
            return False
        else:
            request.replica_set = served.choose(request.head, request.asked_epoch)
        return True

    def _copy(self, request: Request, shadow: Shadow, instructions: list[Instruction]) -> None:
        size = len(request.body)
        if not shadow.take(request.kind, size):
            return
        try:
            served = self._fleet.model(shadow.rules.model or request.served.name)
            replica_set = served.replica_set(shadow.rules.version) if shadow.rules.version else served.current
        except IsochroneError:
            # The version to copy to is not served: that must not touch the request itself.
            shadow.ended(size)
        else:
            instructions.append((Do.COPY, request, Destination(shadow, served, replica_set)))

    def arrive_copy(self, copy: Request, to: Destination, now: int) -> list[Instruction]:
        """The shell has made a copy of a request."""
        copy.shadow = to.shadow
        copy.replica_set = to.replica_set
        copy.deadline = copy.due_at = min(copy.deadline, now + _COPY_NS)
        self.next_due = min(self.next_due, copy.due_at)
        self.open[copy] = None
        try:
            if to.served.suspected:
                self.suspected.examine(copy, now)
                if copy.suspect is not None:
                    copy.suspect = None
                    raise Unavailable("a request that may end its worker's process is not copied")
            replica = placing.place(copy, now)
        except IsochroneError as error:
            return [*self._finish(copy, now), (Do.REJECT, copy, error)]
        return [(Do.SEND, copy, accounts.begin(copy, replica, now))]

    # A strict switch.

    def hold(self, request: Request, served: ServedModel) -> None:
        """A request waits until ``release``; raises when too many do."""
        self._held.setdefault(served.name, Held()).add(request)

    @property
    def held(self) -> int:
        """Requests that wait for a strict switch."""
        return sum(map(len, self._held.values()))

    def release(self, now: int) -> list[Instruction]:
        """The switch is over: requests that waited go on, by what is committed now."""
        instructions: list[Instruction] = []
        self._fleet.release(now)
        held, self._held = self._held, {}
        for waiting in held.values():
            for request in waiting.take_all():
                if request.is_parked:
                    instructions.append((Do.RESUME, request, None))
                    continue
                instructions += self._go_on_held(request, now)
        return instructions

    def _go_on_held(self, request: Request, now: int, *, waited: bool = False) -> list[Instruction]:
        """``_admit`` for one of many: a fault of ours with it must not keep the others from going on."""
        try:
            return self._admit(request, now, waited=waited)
        except Exception as error:
            self.open.pop(request, None)
            request.over = True
            if request.granted is not None:
                quota_accounts.leave(request, now)
            return [(Do.REJECT, request, Internal(f"{type(error).__name__}: {error}"))]

    def reject_held(self, reason: str, now: int) -> list[Instruction]:
        """The switch takes too long."""
        instructions: list[Instruction] = []
        for held in self._held.values():
            for request in held.take_all():
                instructions += self._end_held(request, Unavailable(reason), now)
        return instructions

    def expire_held(self, now: int) -> list[Instruction]:
        """Reject requests that have waited for a switch until their deadline."""
        instructions: list[Instruction] = []
        for held in self._held.values():
            for request in held.take_expired(now):
                waited = (now - request.arrived) / 1e6
                reason = f"Request timeout expired: it waited {waited:.1f} ms for a version to be switched"
                instructions += self._end_held(request, DeadlineExceeded(reason), now)
        return instructions

    def _end_held(self, request: Request, error: IsochroneError, now: int) -> list[Instruction]:
        if request.over:
            return []
        if request in self.open:
            return self._give_up(request, error, now)  # a stream that named another model while it was in flight
        request.over = True
        if request.granted is not None:
            quota_accounts.leave(request, now)  # it waited for a worker before
        return [(Do.REJECT, request, error)]

    # A model without workers.

    def go_on_waiting(self, now: int) -> list[Instruction]:
        """Every few ms while requests wait for a worker: a few of those that one can take now go on."""
        instructions: list[Instruction] = []
        for request, refusal in self.waiting.take_ready(now, _WAITING_PER_TURN):
            if refusal is not None:
                instructions += self._end_waiting(request, refusal, now)
            elif request.is_parked:
                instructions.append((Do.RESUME, request, None))
            else:
                # What its model takes is counted from here on.
                request.arrived = now
                instructions += self._go_on_held(request, now, waited=True)
        return instructions

    def expire_waiting(self, now: int) -> list[Instruction]:
        """A few of those that have waited for a worker as long as they may; call it until there is none."""
        instructions: list[Instruction] = []
        for request, error in self.waiting.take_expired(now, _WAITING_PER_TURN):
            instructions += self._end_waiting(request, error, now)
        return instructions

    def close_waiting(self, reason: str, now: int) -> list[Instruction]:
        """The gateway stops: no request waits for a worker any more."""
        instructions: list[Instruction] = []
        for request in self.waiting.close():
            instructions += self._end_waiting(request, NoWorkerReady(reason), now)
        return instructions

    def _end_waiting(self, request: Request, error: IsochroneError, now: int) -> list[Instruction]:
        if not request.over and not request.is_parked:
            request.served.reject(error)
        return self._end_held(request, error, now)

    # Answers.

    def answered(
        self,
        request: Request,
        attempt: Attempt,
        outcome: Outcome,
        now: int,
        report: LoadReport | None = None,
        version_gone: bool = False,
    ) -> list[Instruction]:
        """An attempt's answer is whole. ``version_gone``: the endpoint has not the version that the machine chose."""
        replica = attempt.replica
        replica.endpoint.heard_at = now
        if report is not None:
            self._reported(attempt, report, now)
        request.attempts.remove(attempt)
        served = request.served
        instructions: list[Instruction] = []
        if outcome is _NOT_BEGUN or outcome is _REJECTED:
            accounts.rejected(attempt, now)
            request.may_have_run |= outcome is _REJECTED
            if version_gone:
                # Until the gateway knows what the endpoint serves now, such requests use up the retry budget.
                instructions.append((Do.LOOK, None, replica.endpoint))
            if request.over:
                return instructions
            if not attempt.streaming:
                before, request.rejection = request.rejection, attempt
                again = self._again(request, attempt, outcome, now)
                if again is None and version_gone and may_repeat(served.rules.retries, request.kind, outcome):
                    again = self._unpin(request, attempt, now)
                if again is not None:
                    return instructions + again
                request.rejection = before
            if request.shadow is None:
                served.rejected_by_worker()
        else:
            accounts.end(attempt, now, outcome is _FAILED)
            if served.suspected and request.may_be_suspect:
                instructions += self._cleared(request, attempt, now)
            if request.over:
                return instructions
        if request.attempts:
            instructions += self._cancel(request, now, unneeded=True)
        if served.evaluation is not None and request.shadow is None:
            # A stream lasts as long as its caller wants: its first answer counts.
            latency = attempt.streaming_at - attempt.sent_at if attempt.streaming_at else now - request.arrived
            served.evaluation.ended(attempt.replica_set.version, latency, outcome is not Outcome.ANSWERED)
        mask = served.latency_mask
        if mask and not served.requests & mask and outcome is Outcome.ANSWERED and _is_hedged(request):
            served.hedging.ended(now - request.arrived)
        if request.granted is not None:
            request.compute_ns = _compute_ns(request, attempt, now)
            if served.counts_tokens:
                quota_accounts.spend(request, request.tokens_of(attempt), now)
        if request.granted is None and request.shadow is None and request.suspect is None:
            # As in ``_finish``, without the call.
            request.over = True
            self.open.pop(request, None)
        else:
            instructions += self._finish(request, now)
        instructions.append((_ANSWER, request, attempt))
        return instructions

    def _reported(self, attempt: Attempt, report: LoadReport, now: int) -> None:
        replica = attempt.replica
        was_draining = replica.endpoint.draining
        attempt.replica_set.balancer.reported(replica, report, now)
        if report.draining != was_draining:
            self._fleet.endpoint_changed(replica.endpoint)

    def streaming(
        self, request: Request, attempt: Attempt, now: int, report: LoadReport | None = None
    ) -> list[Instruction]:
        """An attempt's answer is being passed on: no other can replace it."""
        if report is not None:
            self._reported(attempt, report, now)
        attempt.streaming = True
        if attempt.division is not None:
            # How fast a caller reads is no evidence.
            end_division(attempt, now, answered=True)
        if request.kind is Kind.STREAM:
            attempt.streaming_at = request.streaming_at = now
        others = [other for other in request.attempts if other is not attempt]
        request.attempts = [attempt]
        for other in others:
            accounts.drop(other, now, unneeded=True)
        return [(Do.CANCEL, request, other) for other in others]

    def lost(
        self, request: Request, attempt: Attempt, error: IsochroneError, now: int, *, silent: bool = False
    ) -> list[Instruction]:
        """An attempt ended without an answer, or with one that does not follow the protocol (``attempt.foreign``).

        ``silent``: the endpoint fails its health checks, and the gateway gives the attempt up.
        """
        accounts.end(attempt, now, failed=True, answered=False)
        request.attempts.remove(attempt)
        request.may_have_run |= not (isinstance(error, ConnectionLost) and error.unprocessed)
        instructions: list[Instruction] = [(Do.FOREIGN, request, attempt)] if attempt.foreign else []
        if request.over:
            return instructions
        waits = False
        is_cut = isinstance(error, ConnectionLost) and not error.unprocessed
        if is_cut and not silent and request.may_be_suspect:
            waits, is_first = self.suspected.add_loss(Loss(request, attempt, error), now)
            if is_first:
                instructions.append((Do.CHECK, None, attempt.replica.endpoint))
        if attempt.streaming:
            self._count_failure(request)
            instructions += [*self._cancel(request, now), *self._finish(request, now)]
            instructions.append((Do.CUT_OFF, request, named(attempt, error)))
        elif not waits:
            instructions += self._failed(request, attempt, error, now)
        return instructions

    # Suspects.

    def checked(self, endpoint: Endpoint, is_alive: bool, now: int) -> list[Instruction]:
        """The shell knows whether the process of an endpoint lives."""
        instructions, losses = self.take_check(endpoint, is_alive, now)
        for loss in losses:
            instructions += self.go_on(loss, now)
        return instructions + self.pump(now)

    def take_check(self, endpoint: Endpoint, is_alive: bool, now: int) -> tuple[list[Instruction], list[CheckedLoss]]:
        """``checked`` for a shell that goes on with a few requests at a time: there may be thousands.

        What the check means holds at once; ``go_on`` is due for each loss, and then ``pump``.
        """
        losses = self.suspected.take_losses(endpoint)
        instructions: list[Instruction] = []
        if is_alive:
            return instructions, [CheckedLoss(loss, False) for loss in losses]
        # At once: whatever is placed from here on must not go there.
        self._fleet.endpoint_lost(endpoint)
        self._fleet.look(now)
        instructions.append((Do.GONE, None, endpoint))
        guilty: dict[object, Quarantined] = {}
        for case in self.suspected.process_ended(endpoint, losses, now):
            error = guilty[case.key] = self.suspected.rejection(case.key)
            self._fleet.model(case.key.model).quarantines += 1
            instructions.append((Do.QUARANTINED, None, case))
            for request in case.waiting:
                instructions += self._give_up(request, error, now)
        return instructions, [CheckedLoss(loss, True, guilty.get(loss.request.suspect)) for loss in losses]

    def go_on(self, checked: CheckedLoss, now: int) -> list[Instruction]:
        """A request whose endpoint was checked is sent again, or given up."""
        loss = checked.loss
        if loss.request.over:
            return []
        if checked.process_ended:
            return self._suspect(loss, checked.quarantined, now)
        return self._failed(loss.request, loss.attempt, loss.error, now)

    # Time, endpoints and callers.

    def take_due(self, now: int) -> list[Request]:
        """Requests that are due, in the order of their arrival. They are looked for only when one may be."""
        if now < self.next_due:
            return []
        due = [request for request in self.open if now >= request.due_at]
        if due:
            # What each of them is due for next is decided when it is called for.
            self.next_due = now
        else:
            self.next_due = min((request.due_at for request in self.open), default=NEVER)
            # Patience may have begun meanwhile, which lasts longer than this.
            self.next_due = min(self.next_due, now + _LOOK_NS)
        return due

    def due(self, request: Request, now: int) -> list[Instruction]:
        """``request.due_at`` has come."""
        if request.over:
            return []
        if now >= request.deadline:
            return self._expire(request, now)
        if now >= request.patience_until:
            return self._lose_patience(request, now)
        if now < request.hedge_at:
            return []
        request.hedge_at = NEVER
        request.due_at = min(request.deadline, request.patience_until)
        return self._hedge(request, now)

    def _lose_patience(self, request: Request, now: int) -> list[Instruction]:
        """Leave endpoints that have been silent all the while."""
        since = request.patience_until - accounts.PATIENCE_NS
        request.patience_until = NEVER
        request.due_at = min(request.deadline, request.hedge_at)
        instructions: list[Instruction] = []
        for endpoint in dict.fromkeys(one.replica.endpoint for one in request.attempts):
            if not endpoint.healthy and endpoint.heard_at <= since:
                instructions += self._leave(request, endpoint, now)
            elif not endpoint.healthy:
                accounts.be_patient(request, now)
        return instructions

    def _charge_unanswered(self, request: Request, now: int) -> None:
        """It was worked on: a caller that always leaves before the answer would otherwise pay nothing."""
        if request.granted is not None and request.attempts:
            request.compute_ns = max(_compute_ns(request, each, now) for each in request.attempts)
            if request.served.counts_tokens:
                quota_accounts.spend(request, request.tokens_of(None), now)

    def _expire(self, request: Request, now: int) -> list[Instruction]:
        self._count_failure(request)
        self._charge_unanswered(request, now)
        is_begun = any(attempt.streaming for attempt in request.attempts)
        instructions: list[Instruction] = []
        for attempt in request.attempts:
            if attempt.replica.endpoint.heard_at < attempt.sent_at:
                # The endpoint has sent nothing since: that is evidence about it, not about its queue alone.
                accounts.end(attempt, now, failed=True, answered=False)
            else:
                accounts.drop(attempt, now)
            attempt.given_up = DeadlineExceeded.code
            instructions.append((Do.CANCEL, request, attempt))
        request.attempts = []
        instructions += self._finish(request, now)
        waited = (now - request.arrived) / 1e6
        tried = ", ".join(replica.endpoint.address for replica in request.tried)
        error = DeadlineExceeded(f"Request timeout expired: no answer within {waited:.1f} ms (sent to {tried})")
        instructions.append((Do.CUT_OFF if is_begun else Do.REJECT, request, error))
        return instructions

    def cancelled(self, request: Request, now: int) -> list[Instruction]:
        """The caller has gone."""
        if request.held is not None:
            self.waiting.leave(request)
        if request.over or request not in self.open:
            request.over = True
            if request.granted is not None:
                quota_accounts.leave(request, now)  # it waited for a worker
            return []
        self._charge_unanswered(request, now)
        return [*self._cancel(request, now), *self._finish(request, now)]

    def endpoint_lost(self, endpoint: Endpoint, now: int) -> list[Instruction]:
        """An endpoint fails its health checks: its attempts are given up, and repeated elsewhere where they may be.

        One that no other replica can take stays for a while: the endpoint may only lack processor time.
        """
        instructions: list[Instruction] = []
        for request in list(self.open):
            if self.is_at(request, endpoint, now):
                instructions += self.leave_lost(request, endpoint, now, now)
        return instructions

    def is_at(self, request: Request, endpoint: Endpoint, lost_at: int) -> bool:
        """Whether a request is in flight at an endpoint since before that was lost."""
        return any(each.replica.endpoint is endpoint and each.sent_at <= lost_at for each in request.attempts)

    def leave_lost(self, request: Request, endpoint: Endpoint, lost_at: int, now: int) -> list[Instruction]:
        """``endpoint_lost`` for one request, by a shell that takes a few at a time."""
        if self._can_move(request, now):
            return self._leave(request, endpoint, now, lost_at)
        accounts.be_patient(request, now)
        return []

    def _leave(self, request: Request, endpoint: Endpoint, now: int, lost_at: int = NEVER) -> list[Instruction]:
        """Give up a request's attempts at an endpoint, of those that were sent until it was lost."""
        error = ConnectionLost("the worker does not answer health checks")
        instructions: list[Instruction] = []
        for attempt in [one for one in request.attempts if one.replica.endpoint is endpoint and one.sent_at <= lost_at]:
            attempt.given_up = error.code
            instructions.append((Do.CANCEL, request, attempt))
            instructions += self.lost(request, attempt, error, now, silent=True)
        return instructions

    def sweep(self, now: int) -> list[Instruction]:
        """Some ten times a second: cases of suspects expire."""
        for model in self.suspected.sweep(now):
            served = self._fleet.models.get(model)
            if served is not None:
                served.suspected = False
        return self.pump(now)


def _is_hedged(request: Request) -> bool:
    """Whether hedges may be sent for such requests."""
    return request.kind is Kind.STATELESS and request.shadow is None and request.is_repeatable


def _compute_ns(request: Request, attempt: Attempt, now: int) -> int:
    """The compute to charge: what the worker reports of a run, since a wait is not the caller's fault.

    A stream lasts as long as its caller wants: without a report its time says nothing.
    """
    unknown = 0 if request.kind is Kind.STREAM else NEVER
    return min(now - attempt.sent_at, attempt.replica.report.run_ns or unknown)
