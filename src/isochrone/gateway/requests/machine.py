"""The request machine: the life of every request of one gateway, from arrival to answer. Pure.

Events come in by the methods, each with the time; instructions come out as a list, in order. The shell executes them
after the event, so the machine is consistent whenever an instruction causes the next event. The machine owns version
pinning, placement, admission, quotas, circuit breakers, retries, hedges, deadlines, copies for shadows, suspects and
the counts of evaluations. It never waits, never reads a clock and never touches a connection. Every request that
arrives gets exactly one ANSWER, REJECT or CUT_OFF, unless its caller has gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from isochrone.clock import NEVER, SECOND
from isochrone.errors import ConnectionLost, DeadlineExceeded, Internal, IsochroneError, Quarantined, Unavailable
from isochrone.gateway.replicas import Endpoint, LoadReport
from isochrone.gateway.requests import accounts, placing, quota_accounts
from isochrone.gateway.requests.held import Held
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.repeating import may_repeat
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.requests.suspected import Loss, SuspectedRequests
from isochrone.gateway.resilience.retrials import Placed
from isochrone.gateway.resilience.retry_budget import Kind

if TYPE_CHECKING:
    from isochrone.gateway.fleet.fleet import Fleet
    from isochrone.gateway.fleet.replica_set import ReplicaSet
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.traffic.shadow import Shadow

_SEND, _ANSWER = Do.SEND, Do.ANSWER
_NOT_BEGUN, _REJECTED, _FAILED = Outcome.NOT_BEGUN, Outcome.REJECTED, Outcome.FAILED
#: A copy for a shadow is given up after so long.
_COPY_NS = 10 * SECOND
#: A request that no other replica can take stays with an endpoint that fails its health checks for so long.
_PATIENCE_NS = 2 * SECOND


class Destination(NamedTuple):
    """Where a copy goes."""

    shadow: Shadow
    served: ServedModel
    replica_set: ReplicaSet


class RequestMachine:
    """The requests of one gateway."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        #: Not answered yet, and not held; in the order of arrival, so that equal histories give equal instructions.
        self.open: dict[Request, None] = {}
        self.suspected = SuspectedRequests(lambda model: fleet.rules.of(model).quarantine)
        self._is_pumping = False
        #: By model: requests that wait for a strict switch.
        self._held: dict[str, Held] = {}

    # Arrival.

    def arrive(self, request: Request, now: int) -> list[Instruction]:
        """A codec has read a request."""
        served = request.served
        if served.plain and not request.version and request.asked_epoch is None:
            request.replica_set = served.current
        else:
            try:
                if not self._is_versioned(request):
                    return []
            except IsochroneError as error:
                request.over = True
                return [(Do.REJECT, request, error)]
        served.requests += 1
        served.budget.unbooked += 1
        self.open[request] = None
        if served.commitment is not None:
            request.epoch = served.commitment.epoch
        if request.deadline != NEVER:
            request.due_at = request.deadline
        try:
            if served.suspected and request.may_be_suspect:
                self.suspected.examine(request, now)
            if served.quotas:
                quota_accounts.enter(request, now)
            if request.suspect is not None and not placing.is_of_sequence(request):
                self.suspected.wait(request)
                return self._pump(now)
            if served.hedge_delay_ns and request.kind is Kind.STATELESS and request.suspect is None:
                request.hedge_at = now + served.hedge_delay_ns
                if request.hedge_at < request.deadline:
                    request.due_at = request.hedge_at
            try:
                replica = placing.place(request, now)
            except IsochroneError:
                # By what is known of the workers that have this version: one too slow for deadlines is rejected here.
                self._count_failure(request)
                raise
        except IsochroneError as error:
            served.refused += 1
            return [*self._finish(request, now), (Do.REJECT, request, error)]
        instructions: list[Instruction] = [(_SEND, request, accounts.begin(request, replica, now))]
        policy = request.replica_set.balancer.policy
        if policy.wants_probes and (probes := policy.probes(now)):
            instructions.append((Do.PROBE, None, probes))
        if served.shadow is not None and request.suspect is None:
            self._copy(request, served.shadow, instructions)
        return instructions

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
                try:
                    instructions += self.arrive(request, now)
                except Exception as error:
                    # A fault of ours with one request must not keep the others from going on.
                    self.open.pop(request, None)
                    request.over = True
                    reason = f"{type(error).__name__}: {error}"
                    instructions.append((Do.REJECT, request, Internal(reason)))
        return instructions

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
        return [(Do.REJECT, request, error)]

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
            attempt.replica_set.balancer.reported(replica, report, now)
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
        else:
            accounts.end(attempt, now, outcome is _FAILED)
            if served.suspected and request.may_be_suspect:
                instructions += self._cleared(request, attempt, now)
            if request.over:
                return instructions
        if request.attempts:
            instructions += self._cancel(request, now, unneeded=True)
        if served.trial is not None and request.shadow is None:
            # A stream lasts as long as its caller wants: its first answer counts.
            latency = attempt.streaming_at - attempt.sent_at if attempt.streaming_at else now - request.arrived
            served.trial.ended(attempt.replica_set.version, latency, outcome is not Outcome.ANSWERED)
        if not served.requests & 7 and request.kind is Kind.STATELESS:
            # One answer in eight is enough to know how long they take.
            served.hedging.ended(now - request.arrived)
        if request.granted is not None:
            # What the worker reports of a run: the wait is not the caller's fault.
            took = 0 if request.kind is Kind.STREAM else now - attempt.sent_at
            request.compute_ns = min(took, replica.report.run_ns or NEVER)
        if request.granted is None and request.shadow is None and request.suspect is None:
            # As in ``_finish``, without the call.
            request.over = True
            self.open.pop(request, None)
        else:
            instructions += self._finish(request, now)
        instructions.append((_ANSWER, request, attempt))
        return instructions

    def streaming(self, request: Request, attempt: Attempt, now: int) -> list[Instruction]:
        """An attempt's answer is being passed on: no other can replace it."""
        attempt.streaming = True
        if request.kind is Kind.STREAM:
            attempt.streaming_at = now
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
            instructions.append((Do.CUT_OFF, request, _named(attempt, error)))
        elif not waits:
            instructions += self._failed(request, attempt, error, now)
        return instructions

    def _failed(self, request: Request, attempt: Attempt, error: IsochroneError, now: int) -> list[Instruction]:
        """An attempt failed, and its worker's process did not end with it: another worker may do better."""
        attempt.lost = isinstance(error, ConnectionLost)
        unprocessed = isinstance(error, ConnectionLost) and error.unprocessed
        instructions: list[Instruction] = []
        if attempt.lost and not attempt.foreign:
            # Another server may have its port by now.
            instructions.append((Do.LOOK, None, attempt.replica.endpoint))
        outcome = Outcome.NOT_BEGUN if unprocessed else Outcome.FOREIGN if attempt.foreign else Outcome.LOST
        again = self._again(request, attempt, outcome, now)
        if again is not None:
            return instructions + again
        return instructions + self._give_up(request, _named(attempt, error), now)

    # Another attempt.

    def _again(
        self, request: Request, attempt: Attempt, outcome: Outcome, now: int, *, process_ended: bool = False
    ) -> list[Instruction] | None:
        """Keep a request going after an attempt failed; None: nothing does."""
        if request.attempts:
            return []
        served = request.served
        retries = served.rules.retries
        if request.shadow is not None or not retries.enabled or len(request.tried) >= retries.attempts:
            return None
        if now >= request.deadline or not may_repeat(retries, request.kind, outcome):
            return None
        if placing.is_of_sequence(request):
            return self._move_sequence(request, attempt, now)
        replica_set = request.replica_set
        eligible = replica_set.balancer.eligible
        if len(eligible) < 2 and attempt.replica in eligible:
            if replica_set.whole is None:
                return None
            # No other replica in this tier: any other tier will do now.
            request.replica_set = replica_set.whole
        # The first repetition of what was lost with its connection is free: there is no more of it than was in flight
        # there, and the death of a worker must not cost what the budget happens not to cover.
        free = process_ended or ((attempt.lost or bool(attempt.foreign)) and len(request.tried) == 1)
        if not free and not served.budget.take(now):
            served.retries_denied += 1
            return None
        if request.suspect is not None:
            self.suspected.wait(request)
            return self._pump(now)
        replica = placing.another(request, now)
        if replica is None:
            return None
        served.retries += 1
        return [(Do.SEND, request, accounts.begin(request, replica, now))]

    def _move_sequence(self, request: Request, attempt: Attempt, now: int) -> list[Instruction] | None:
        """Send the first request of a sequence, which no worker has begun, to another worker."""
        served, key, replica_set = request.served, request.demand.key, request.replica_set
        replica = served.sequences.next_home(key, replica_set, request.tried, lost=attempt.lost)
        if replica is None and replica_set.whole is not None:
            # No other replica in this tier: any other tier will do now.
            replica_set = request.replica_set = replica_set.whole
            replica = served.sequences.next_home(key, replica_set, request.tried, lost=attempt.lost)
        if replica is None or placing.breaker_refusal(request, replica, now):
            return None
        if not (attempt.lost and len(request.tried) == 1) and not served.budget.take(now):
            served.retries_denied += 1
            return None
        served.retries += 1
        served.sequences.settle(key, replica_set, replica)
        return [(Do.SEND, request, accounts.begin(request, replica, now))]

    def _unpin(self, request: Request, attempt: Attempt, now: int) -> list[Instruction] | None:
        """Send a request again to an endpoint that has lost the version chosen here: without one, as it came."""
        if now >= request.deadline or not attempt.replica_set.version or self._fleet.is_led:
            # Under a control plane only what is committed is served: the newest there may be what is being prepared.
            return None
        if request.shadow is not None or not request.served.budget.take(now):
            return None
        request.replica_set = request.served.replica_set("")
        replica = request.replica_set.replicas.get(attempt.replica.endpoint.address)
        return None if replica is None else [(Do.SEND, request, accounts.begin(request, replica, now))]

    # Suspects.

    def checked(self, endpoint: Endpoint, is_alive: bool, now: int) -> list[Instruction]:
        """The shell knows whether the process of an endpoint lives."""
        losses = self.suspected.take_losses(endpoint)
        instructions: list[Instruction] = []
        if is_alive:
            for loss in losses:
                if not loss.request.over:
                    instructions += self._failed(loss.request, loss.attempt, loss.error, now)
            return instructions + self._pump(now)
        instructions.append((Do.GONE, None, endpoint))
        guilty: dict[object, Quarantined] = {}
        for case in self.suspected.process_ended(endpoint, losses, now):
            error = guilty[case.key] = self.suspected.rejection(case.key)
            self._fleet.model(case.key.model).quarantines += 1
            instructions.append((Do.QUARANTINED, None, case))
            for request in case.waiting:
                instructions += self._give_up(request, error, now)
        for loss in losses:
            if not loss.request.over:
                instructions += self._suspect(loss, guilty.get(loss.request.suspect), now)
        return instructions + self._pump(now)

    def _suspect(self, loss: Loss, quarantined: Quarantined | None, now: int) -> list[Instruction]:
        """The worker's process ended under a request: the request goes on alone, unless it is quarantined."""
        request, attempt = loss.request, loss.attempt
        if quarantined is not None:
            return self._give_up(request, quarantined, now)
        self.suspected.mark_in_flight(request)
        request.hedge_at = NEVER
        request.due_at = request.deadline
        attempt.lost = True
        request.loss = _named(attempt, loss.error)
        again = self._again(request, attempt, Outcome.LOST, now, process_ended=True)
        return again if again is not None else self._give_up(request, request.loss, now)

    def _cleared(self, request: Request, attempt: Attempt, now: int) -> list[Instruction]:
        """A worker answered it and lives: identical requests that waited are no suspects either."""
        instructions: list[Instruction] = []
        for other in self.suspected.answered(request, attempt):
            try:
                replica = placing.place(other, now)
            except IsochroneError as error:
                instructions += self._give_up(other, error, now)
            else:
                instructions.append((Do.SEND, other, accounts.begin(other, replica, now)))
        return instructions + self._pump(now)

    def _pump(self, now: int) -> list[Instruction]:
        """Send suspects to endpoints that have room for one."""
        instructions: list[Instruction] = []
        if self.suspected.has_waiting and not self._is_pumping:
            self._is_pumping = True
            try:
                self.suspected.pump(lambda request, occupied: self._place_alone(request, occupied, now, instructions))
            finally:
                self._is_pumping = False
        return instructions

    def _place_alone(
        self, request: Request, occupied: Collection[str], now: int, instructions: list[Instruction]
    ) -> str | Placed:
        """Send a suspect to an endpoint that is not occupied, unless it has tried them all."""
        if request.over:
            return Placed.ENDED
        replica_set = request.replica_set
        replicas = replica_set.replicas
        replica = placing.beside(request, tuple(replicas[each] for each in occupied if each in replicas), now)
        if replica is not None:
            if request.tried:
                request.served.retries += 1
            instructions.append((Do.SEND, request, accounts.begin(request, replica, now)))
            return replica.endpoint.address
        if any(each not in request.tried for each in replica_set.balancer.eligible):
            return Placed.WAITS
        if replica_set.whole is not None:
            # No other replica in this tier: any other tier will do now.
            request.replica_set = replica_set.whole
            return self._place_alone(request, occupied, now, instructions)
        instructions += self._give_up(request, request.loss or request.served.nobody(replica_set), now)
        return Placed.ENDED

    # Time, endpoints and callers.

    def due(self, request: Request, now: int) -> list[Instruction]:
        """``request.due_at`` has come."""
        if request.over:
            return []
        if now >= request.deadline:
            return self._expire(request, now)
        if now >= request.patience_until:
            request.patience_until = NEVER
            request.due_at = min(request.deadline, request.hedge_at)
            unhealthy = dict.fromkeys(one.replica.endpoint for one in request.attempts)
            return [
                each for endpoint in unhealthy if not endpoint.healthy for each in self._leave(request, endpoint, now)
            ]
        if now < request.hedge_at:
            return []
        request.hedge_at = NEVER
        request.due_at = min(request.deadline, request.patience_until)
        return self._hedge(request, now)

    def _hedge(self, request: Request, now: int) -> list[Instruction]:
        if len(request.attempts) != 1 or request.attempts[0].streaming:
            return []
        replica = placing.another(request, now)
        served = request.served
        if replica is None or not served.hedging.may_send(request.replica_set.balancer.eligible, replica, now):
            return []
        served.hedges += 1
        return [(Do.SEND, request, accounts.begin(request, replica, now))]

    def _expire(self, request: Request, now: int) -> list[Instruction]:
        self._count_failure(request)
        is_begun = any(attempt.streaming for attempt in request.attempts)
        instructions: list[Instruction] = []
        for attempt in request.attempts:
            if attempt.replica.endpoint.heard_at < attempt.sent_at:
                # The endpoint has sent nothing since: that is evidence about it, not about its queue alone.
                accounts.end(attempt, now, failed=True, answered=False)
            else:
                accounts.drop(attempt, now)
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
            request.held.remove(request)
        if request.over or request not in self.open:
            request.over = True
            return []
        return [*self._cancel(request, now), *self._finish(request, now)]

    def endpoint_lost(self, endpoint: Endpoint, now: int) -> list[Instruction]:
        """An endpoint fails its health checks: its attempts are given up, and repeated elsewhere where they may be.

        One that no other replica can take stays for a while: the endpoint may only lack processor time.
        """
        instructions: list[Instruction] = []
        for request in [one for one in self.open if any(each.replica.endpoint is endpoint for each in one.attempts)]:
            if self._can_move(request):
                instructions += self._leave(request, endpoint, now)
            else:
                request.patience_until = now + _PATIENCE_NS
                request.due_at = min(request.due_at, request.patience_until)
        return instructions

    def _can_move(self, request: Request) -> bool:
        """Whether another replica could take a request whose attempt is given up."""
        retries = request.served.rules.retries
        if not retries.enabled or len(request.tried) >= retries.attempts:
            return False
        others = any(replica not in request.tried for replica in request.replica_set.balancer.eligible)
        return others and may_repeat(retries, request.kind, Outcome.LOST)

    def _leave(self, request: Request, endpoint: Endpoint, now: int) -> list[Instruction]:
        """Give up a request's attempts at an endpoint."""
        error = ConnectionLost("the worker does not answer health checks")
        instructions: list[Instruction] = []
        for attempt in [one for one in request.attempts if one.replica.endpoint is endpoint]:
            instructions.append((Do.CANCEL, request, attempt))
            instructions += self.lost(request, attempt, error, now, silent=True)
        return instructions

    def sweep(self, now: int) -> list[Instruction]:
        """Some ten times a second: cases of suspects expire."""
        for model in self.suspected.sweep(now):
            served = self._fleet.models.get(model)
            if served is not None:
                served.suspected = False
        return self._pump(now)

    # The end.

    def _give_up(self, request: Request, error: IsochroneError, now: int) -> list[Instruction]:
        """Nothing is left to try."""
        instructions = [*self._cancel(request, now), *self._finish(request, now)]
        self._count_failure(request)
        if request.rejection is not None and not isinstance(error, Quarantined):
            instructions.append((Do.ANSWER, request, request.rejection))
        else:
            instructions.append((Do.REJECT, request, error.begun() if request.may_have_run else error))
        return instructions

    def _cancel(self, request: Request, now: int, *, unneeded: bool = False) -> list[Instruction]:
        """Every attempt in flight is of no use any more. ``unneeded``: another attempt's answer came first."""
        if not request.attempts:
            return []
        attempts, request.attempts = request.attempts, []
        for attempt in attempts:
            accounts.drop(attempt, now, unneeded=unneeded)
        return [(Do.CANCEL, request, attempt) for attempt in attempts]

    def _finish(self, request: Request, now: int) -> Iterable[Instruction]:
        request.over = True
        self.open.pop(request, None)
        if request.granted is not None:
            quota_accounts.leave(request, now)
        if request.shadow is not None:
            request.shadow.ended(len(request.body))
        if request.suspect is not None:
            self.suspected.over(request)
            return self._pump(now)
        return ()

    def _count_failure(self, request: Request) -> None:
        """A version under evaluation, or the one it is compared with, has cost a caller an answer."""
        if request.served.trial is not None and request.shadow is None:
            request.served.trial.ended(request.replica_set.version, 0, True)


def _named(attempt: Attempt, error: IsochroneError) -> ConnectionLost:
    """Whatever it was, an answer that is too large included, it was not the caller's mistake."""
    unprocessed = isinstance(error, ConnectionLost) and error.unprocessed
    return ConnectionLost(f"worker {attempt.replica.endpoint.address}: {error}", unprocessed=unprocessed)
