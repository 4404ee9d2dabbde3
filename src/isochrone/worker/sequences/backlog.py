"""Sequences of requests, and the backlog of those that wait for a slot. Pure.

Part of the decision in ``batcher``. Sequences get slots in order of arrival. A sequence that can no longer be served
within its deadline is rejected immediately, not when a slot becomes free.
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
    #: A request that will not run, and its error.
    Rejection = tuple[InferRequest, IsochroneError]


class Sequence:
    """The requests and the state of one correlation id."""

    __slots__ = ("ended", "id", "idle_since", "place", "queue", "states")

    def __init__(self, sequence_id: SequenceId) -> None:
        self.id = sequence_id
        #: Requests not yet taken, each with its number in the order of arrival over all sequences.
        self.queue: deque[tuple[int, InferRequest]] = deque()
        #: (slot, instance); None: waiting for one.
        self.place: tuple[int, int] | None = None
        #: Whether the last request pushed carries END: only START may follow.
        self.ended = False
        self.states: States = ()
        self.idle_since = 0

    def take_whole(self) -> list[InferRequest]:
        """Takes the queued requests of the current sequence; a START behind them begins the next, which stays."""
        taken = [self.queue.popleft()[1]]
        while self.queue and not self.queue[0][1].plan.sequence_start:
            taken.append(self.queue.popleft()[1])
        return taken

    def is_stale(self, now: int) -> bool:
        return any(request.cancelled or request.deadline <= now for _, request in self.queue)

    def earliest_deadline(self) -> int:
        return min((request.deadline for _, request in self.queue), default=NEVER)

    def rejections(self, model: str) -> list[Rejection]:
        """All its requests, with the error of the whole sequence."""
        sequence = f"sequence {self.id} of model '{model}'"
        error: IsochroneError
        if any(request.cancelled for _, request in self.queue):
            error = Cancelled(f"{sequence} was cancelled while it waited for a slot")
        else:
            error = DeadlineExceeded(f"Request timeout expired: {sequence} still waited for a slot").not_begun()
        return [(request, error) for _, request in self.queue]


class Backlog:
    """Sequences without a slot, in order of arrival."""

    __slots__ = ("_sequences", "deadline", "requests")

    def __init__(self) -> None:
        self._sequences: deque[Sequence] = deque()
        #: Requests of all waiting sequences together.
        self.requests = 0
        #: No waiting request has an earlier deadline. A bound only: a sequence that leaves does not update it.
        self.deadline = NEVER

    def join(self, sequence: Sequence) -> None:
        """Appends a sequence with its queued requests."""
        self._sequences.append(sequence)
        self.requests += len(sequence.queue)
        self.deadline = min(self.deadline, sequence.earliest_deadline())

    def grow(self, request: InferRequest) -> None:
        """Counts a request that was queued in a waiting sequence."""
        self.requests += 1
        self.deadline = min(self.deadline, request.deadline)

    def next(self) -> Sequence | None:
        """Removes and returns the first sequence."""
        if not self._sequences:
            return None
        sequence = self._sequences.popleft()
        self.requests -= len(sequence.queue)
        if not self._sequences:
            self.deadline = NEVER
        return sequence

    def sweep(self, now: int) -> list[Sequence]:
        """Removes and returns the sequences with an expired or cancelled request."""
        stale = [sequence for sequence in self._sequences if sequence.is_stale(now)]
        if stale:
            self._sequences = deque(sequence for sequence in self._sequences if not sequence.is_stale(now))
            self.requests -= sum(len(sequence.queue) for sequence in stale)
        self.deadline = min((sequence.earliest_deadline() for sequence in self._sequences), default=NEVER)
        return stale

    def clear(self) -> None:
        self._sequences.clear()
        self.requests = 0
        self.deadline = NEVER
