"""Requests that are not answered yet: how they end, and how suspects among them take their turns. Pure.

The lowest layer of the request machine; ``further_attempts`` and ``machine`` build on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from isochrone.errors import IsochroneError, Quarantined
from isochrone.gateway.requests import accounts, placing, quota_accounts
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.request import Request
from isochrone.gateway.requests.suspected import SuspectedRequests
from isochrone.gateway.requests.waiting_rooms import WaitingRooms
from isochrone.gateway.resilience.retrials import Placed

if TYPE_CHECKING:
    from isochrone.gateway.fleet.fleet import Fleet


class OpenRequests:
    """The open requests of one gateway."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        #: Not answered yet, and neither held nor waiting; in the order of arrival, so that equal histories give equal
        #: instructions.
        self.open: dict[Request, None] = {}
        #: No request in flight is due before this instant, patience with silent endpoints aside.
        self.next_due = 0
        #: Requests that wait for a worker. They are not open.
        self.waiting = WaitingRooms()
        self.suspected = SuspectedRequests(lambda model: fleet.rules.of(model).quarantine)
        self._is_pumping = False

    # The end of a request.

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
            return self.pump(now)
        return ()

    def _count_failure(self, request: Request) -> None:
        """A version under evaluation, or the one it is compared with, has cost a caller an answer."""
        if request.served.evaluation is not None and request.shadow is None:
            request.served.evaluation.ended(request.replica_set.version, 0, True)

    # A model without workers.

    def _wait_for_worker(self, request: Request) -> bool:
        """Whether an open request that no worker has seen waits until one is ready; raises if too many do."""
        if not request.can_wait or (placing.is_of_sequence(request) and not request.demand.starts_sequence):
            return False  # the state of a sequence is where it began
        if not self.waiting.enter(request, request.served):
            return False
        self.open.pop(request, None)
        return True

    # Suspects.

    def pump(self, now: int) -> list[Instruction]:
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
