"""Further attempts: whether a request whose attempt failed is sent again, and where; hedges. Pure.

The middle layer of the request machine. Every rule that sends a request a second time stands here or in ``repeating``.
"""

from __future__ import annotations

from isochrone.clock import NEVER
from isochrone.errors import ConnectionLost, IsochroneError, Quarantined
from isochrone.gateway.requests import accounts, placing
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.open_requests import OpenRequests
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.repeating import may_repeat
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.requests.suspected import Loss

#: Attempts of one request that reached no worker, at most: where so many connections break, no other will hold.
_UNREACHED = 8


class FurtherAttempts(OpenRequests):
    """Open requests, and how each goes on when an attempt failed."""

    def _again(
        self, request: Request, attempt: Attempt, outcome: Outcome, now: int, *, process_ended: bool = False
    ) -> list[Instruction] | None:
        """Keep a request going after an attempt failed; None: nothing does."""
        if request.attempts:
            return []
        served = request.served
        retries = served.rules.retries
        unreached = attempt.lost and outcome is Outcome.NOT_BEGUN
        if unreached:
            request.unreached += 1
        if request.shadow is not None or not retries.enabled or _is_exhausted(request):
            return None
        if now >= request.deadline or not may_repeat(retries, request.kind, outcome):
            return None
        if placing.is_of_sequence(request):
            return self._move_sequence(request, attempt, now)
        if not placing.has_untried(request, now):
            return None
        # The first repetition of what was lost with its connection is free: there is no more of it than was in flight
        # there, and the death of a worker must not cost what the budget happens not to cover. So is every repetition of
        # what reached no worker: it has cost none of them anything.
        is_first = (attempt.lost or bool(attempt.foreign)) and len(request.tried) == 1
        free = process_ended or unreached or is_first
        is_suspect = request.suspect is not None
        placing.leave_exhausted_tier(request)
        replica = None if is_suspect else placing.another(request, now)
        if replica is None and unreached and not is_suspect:
            # The policy may insist on one that is gone.
            replica = placing.any_untried(request, now)
        if replica is None and not is_suspect:
            return None
        if not free and not served.budget.take(now):
            served.retries_denied += 1
            return None
        if replica is None:
            self.suspected.wait(request)
            return self.pump(now)
        served.retries += 1
        return [(Do.SEND, request, accounts.begin(request, replica, now))]

    def _move_sequence(self, request: Request, attempt: Attempt, now: int) -> list[Instruction] | None:
        """Send the first request of a sequence, which no worker has begun, to another worker."""
        placing.catch_up(request, now)
        served, key, replica_set = request.served, request.demand.key, request.replica_set
        replica = served.sequences.next_home(key, replica_set, request.tried, lost=attempt.lost)
        if replica is None and replica_set.whole is not None:
            # No other replica in this tier: any other tier will do now.
            replica_set = request.replica_set = replica_set.whole
            replica = served.sequences.next_home(key, replica_set, request.tried, lost=attempt.lost)
        if replica is None or placing.breaker_refusal(request, replica, now):
            return None
        # The first request of a sequence moves only while no worker has begun it.
        if not attempt.lost and not served.budget.take(now):
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
        placing.catch_up(request, now)
        replica = request.replica_set.replicas.get(attempt.replica.endpoint.address)
        return None if replica is None else [(Do.SEND, request, accounts.begin(request, replica, now))]

    def _hedge(self, request: Request, now: int) -> list[Instruction]:
        if len(request.attempts) != 1 or request.attempts[0].streaming:
            return []
        replica = placing.another(request, now)
        served = request.served
        if replica is None or not served.hedging.may_send(request.replica_set.balancer.eligible, replica, now):
            return []
        served.hedges += 1
        attempt = accounts.begin(request, replica, now)
        attempt.is_hedge = True
        return [(Do.SEND, request, attempt)]

    def _can_move(self, request: Request, now: int) -> bool:
        """Whether another replica could take a request whose attempt is given up."""
        retries = request.served.rules.retries
        if not retries.enabled or _is_exhausted(request):
            return False
        return placing.has_untried(request, now) and may_repeat(retries, request.kind, Outcome.LOST)

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
        if outcome is Outcome.NOT_BEGUN and not request.may_have_run and request.served.rules.waiting_room.max_requests:
            try:
                if not request.attempts and self._wait_for_worker(request):
                    return instructions
            except IsochroneError as full:
                return instructions + self._give_up(request, full, now)
        return instructions + self._give_up(request, named(attempt, error), now)

    def _suspect(self, loss: Loss, quarantined: Quarantined | None, now: int) -> list[Instruction]:
        """The worker's process ended under a request: the request goes on alone, unless it is quarantined."""
        request, attempt = loss.request, loss.attempt
        if quarantined is not None:
            return self._give_up(request, quarantined, now)
        self.suspected.mark_in_flight(request)
        request.hedge_at = NEVER
        request.due_at = min(request.deadline, request.patience_until)
        attempt.lost = True
        request.loss = named(attempt, loss.error)
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
        return instructions + self.pump(now)


def _is_exhausted(request: Request) -> bool:
    """Whether a request has had its attempts. Those that reached no worker count on their own."""
    reached = len(request.tried) - request.unreached
    return reached >= request.served.rules.retries.attempts or request.unreached >= _UNREACHED


def named(attempt: Attempt, error: IsochroneError) -> ConnectionLost:
    """Whatever it was, an answer that is too large included, it was not the caller's mistake."""
    unprocessed = isinstance(error, ConnectionLost) and error.unprocessed
    return ConnectionLost(f"worker {attempt.replica.endpoint.address}: {error}", unprocessed=unprocessed)
