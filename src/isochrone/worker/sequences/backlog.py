"""Sequences of requests, and the line in which they wait when every slot is taken.

Part of the decision in ``sequences``: first come, first served, and whoever can no longer be served in time
is refused at once rather than when a slot frees. Like all of it, pure: no clock, no waiting.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from isochrone.clock import NEVER
from isochrone.errors import Cancelled, DeadlineExceeded, IsochroneError

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.sequences.tensors import States

    SequenceId = int | str
    #: A request that will not run, and what to tell its caller.
    Refusal = tuple[InferRequest, IsochroneError]


class Sequence:
    """Everything known under one correlation id."""

    __slots__ = ("ended", "id", "idle_since", "place", "queue", "states")

    def __init__(self, sequence_id: SequenceId) -> None:
        self.id = sequence_id
        #: Requests not yet taken, with the number that tells which came first of all sequences.
        self.queue: deque[tuple[int, InferRequest]] = deque()
        #: (slot, instance); None: waiting for one.
        self.place: tuple[int, int] | None = None
        #: Whether the last request pushed carries END: only START may follow.
        self.ended = False
        self.states: States = ()
        self.idle_since = 0

    def take_whole(self) -> list[InferRequest]:
        """Takes what is queued of the sequence under way; a START behind it is the next one's, which stays."""
        taken = [self.queue.popleft()[1]]
        while self.queue and not self.queue[0][1].plan.sequence_start:
            taken.append(self.queue.popleft()[1])
        return taken

    def is_stale(self, now: int) -> bool:
        return any(request.cancelled or request.deadline <= now for _, request in self.queue)

    def earliest_deadline(self) -> int:
        return min((request.deadline for _, request in self.queue), default=NEVER)

    def refusals(self, model: str) -> list[Refusal]:
        """Its requests, each with the reason why the whole sequence is refused."""
        waited = f"sequence {self.id} of model '{model}'"
        error: IsochroneError
        if any(request.cancelled for _, request in self.queue):
            error = Cancelled(f"{waited} was cancelled while it waited for a slot")
        else:
            error = DeadlineExceeded(f"Request timeout expired: {waited} still waited for a slot")
        return [(request, error) for _, request in self.queue]


class Backlog:
    """Sequences without a slot, first come first served."""

    __slots__ = ("_line", "deadline", "requests")

    def __init__(self) -> None:
        self._line: deque[Sequence] = deque()
        #: Requests of all waiting sequences together.
        self.requests = 0
        #: No waiting request has an earlier deadline. Only a bound, so that leaving the line costs no search.
        self.deadline = NEVER

    def join(self, sequence: Sequence) -> None:
        """Puts a sequence, with what it has queued, at the end."""
        self._line.append(sequence)
        self.requests += len(sequence.queue)
        self.deadline = min(self.deadline, sequence.earliest_deadline())

    def grow(self, request: InferRequest) -> None:
        """A request has been queued in a sequence that is waiting already."""
        self.requests += 1
        self.deadline = min(self.deadline, request.deadline)

    def next(self) -> Sequence | None:
        """Takes the first sequence out of the line."""
        if not self._line:
            return None
        sequence = self._line.popleft()
        self.requests -= len(sequence.queue)
        if not self._line:
            self.deadline = NEVER
        return sequence

    def sweep(self, now: int) -> list[Sequence]:
        """Takes out, from anywhere in the line, the sequences with an expired or cancelled request."""
        stale = [sequence for sequence in self._line if sequence.is_stale(now)]
        if stale:
            self._line = deque(sequence for sequence in self._line if not sequence.is_stale(now))
            self.requests -= sum(len(sequence.queue) for sequence in stale)
        self.deadline = min((sequence.earliest_deadline() for sequence in self._line), default=NEVER)
        return stale

    def clear(self) -> None:
        self._line.clear()
        self.requests = 0
        self.deadline = NEVER
