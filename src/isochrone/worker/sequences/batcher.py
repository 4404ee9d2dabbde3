"""Triton's sequence batching: the requests of stateful models that run together. Pure.

``runner`` pushes requests, takes batches and reports their ends. ``now`` is an argument; nothing here waits, locks,
reads a clock or runs a model. All calls come from one thread, except ``SequenceBatch.inputs``, which reads only
immutable data.

A sequence holds one slot (instance, number) from START until END has run or it was idle too long. Sequences without a
slot wait in order of arrival. The strategies differ in the rows of a batch: *direct* uses the slot's number as the row,
so a model may keep state by row, and rows without a request are not READY; *oldest* packs the oldest ready requests
densely, so there may be more slots than rows.

Deadlines and cancellation, as in Triton: a request whose sequence holds a slot runs although it has expired, because
later answers of the sequence depend on it and a model with state of its own relies on START and END; the transport
discards the answer. A request that is cancelled before it runs ends its sequence: the requests behind it are cancelled
too, since their answers would lack it, and the next request needs START. A sequence without a slot has run nothing, so
it is rejected whole as soon as one of its requests expires or is cancelled.
"""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isochrone.clock import MICROSECOND, NEVER
from isochrone.errors import Cancelled, InvalidArgument, ModelFailed
from isochrone.worker.sequences.backlog import Backlog, Sequence
from isochrone.worker.sequences.tensors import SequenceTensors

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.sequences.backlog import Rejection, SequenceId

    #: (number of the request, slot, sequence); the number is unique.
    Candidate = tuple[int, int, Sequence]

#: Triton's default for ``max_sequence_idle_microseconds``.
DEFAULT_IDLE_MICROSECONDS = 1_000_000


class SequenceBatch:
    """Requests of different sequences that run together on one instance."""

    __slots__ = ("_states", "_tensors", "instance", "positions", "requests", "rows", "sequences")

    def __init__(
        self,
        instance: int,
        requests: tuple[InferRequest, ...],
        positions: tuple[int, ...],
        sequences: tuple[Sequence, ...],
        tensors: SequenceTensors,
    ) -> None:
        self.instance = instance
        self.requests = requests
        #: The row of each request, ascending.
        self.positions = positions
        #: Rows of the model's inputs, including rows without a request.
        self.rows = positions[-1] + 1
        #: Private to the batcher.
        self.sequences = sequences
        self._states = tuple(sequence.states for sequence in sequences)
        self._tensors = tensors

    def row_of(self, index: int) -> int:
        """The row of ``requests[index]`` in inputs and outputs; 0 for a model without a batch dimension."""
        return self.positions[index]

    def inputs(self) -> Tensors:
        """The model's inputs: those of the callers, control tensors, implicit state."""
        return self._tensors.gather(self.requests, self._states, self.positions, self.rows)


class SequenceBatcher:
    """The sequences of one model version and the slots they run in."""

    def __init__(self, config: Any, instances: int, directory: Path | None = None) -> None:
        """``config`` is a validated ``ModelConfig`` with ``sequence_batching``; ``directory`` is the model's."""
        batching = config.sequence_batching
        self._model: str = config.name
        self._max_rows: int = max(1, config.max_batch_size)
        self._direct: bool = not batching.HasField("oldest")
        slots = self._max_rows if self._direct else batching.oldest.max_candidate_sequences
        strategy = batching.direct if self._direct else batching.oldest
        self._delay: int = strategy.max_queue_delay_microseconds * MICROSECOND
        self._preferred = tuple(batching.oldest.preferred_batch_size)
        self._utilization: float = batching.direct.minimum_slot_utilization
        self._max_idle: int = (batching.max_sequence_idle_microseconds or DEFAULT_IDLE_MICROSECONDS) * MICROSECOND
        self._tensors = SequenceTensors(config, directory)

        self._sequences: dict[SequenceId, Sequence] = {}
        #: By instance, then slot.
        self._slots: list[list[Sequence | None]] = [[None] * slots for _ in range(instances)]
        #: A heap of (slot, instance): the lowest slot first spreads sequences over instances and keeps batches dense.
        self._free = [(slot, instance) for slot in range(slots) for instance in range(instances)]
        self._backlog = Backlog()
        #: Sequences that hold a slot and have nothing to run, longest idle first.
        self._idle: dict[SequenceId, Sequence] = {}
        self._running: list[SequenceBatch | None] = [None] * instances
        #: Until when ``take`` delays an instance's requests to collect more; NEVER: it does not.
        self._held: list[int] = [NEVER] * instances
        self._rejected: list[Rejection] = []
        self._pending = 0
        self._pushed = 0

    @property
    def state_outputs(self) -> tuple[str, ...]:
        """Outputs that ``finished`` needs, whether or not a caller requests them."""
        return tuple(state.output_name for state in self._tensors.states)

    def pending(self) -> int:
        """Requests pushed and neither taken nor rejected."""
        return self._pending

    def push(self, request: InferRequest, now: int) -> int | None:
        """Queues a request, or raises without changing anything.

        Returns the instance that may now have a batch; None if the sequence waits for a slot. START on a live sequence
        restarts it behind its queued requests: requests of one id run in the order of their arrival.
        """
        plan = request.plan
        if not plan.sequence_id:
            raise InvalidArgument(
                f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID"
            )
        if plan.batch_size != 1:
            raise InvalidArgument(
                f"inference request to model '{self._model}' must specify batch-size 1 due to requirements of"
                f" sequence batcher, got {plan.batch_size}"
            )
        self._tensors.check_sequence_id(plan.sequence_id)
        sequence = self._sequences.get(plan.sequence_id)
        if not plan.sequence_start and (sequence is None or sequence.ended):
            raise InvalidArgument(
                f"inference request for sequence {plan.sequence_id} to model '{self._model}' must specify the"
                " START flag on the first request of the sequence"
            )
        if sequence is None:
            sequence = self._sequences[plan.sequence_id] = Sequence(plan.sequence_id)
            if self._free:
                self._place(sequence)
            else:
                self._backlog.join(sequence)
        if sequence.place is None:
            self._backlog.grow(request)
        self._idle.pop(sequence.id, None)
        sequence.queue.append((self._pushed, request))
        sequence.ended = plan.sequence_end
        self._pushed += 1
        self._pending += 1
        request.enqueued = now
        return None if sequence.place is None else sequence.place[1]

    def take(self, instance: int, now: int) -> SequenceBatch | None:
        """The next batch for an instance; None if there is none yet, or the last one has not ended."""
        self._held[instance] = NEVER
        if self._running[instance] is not None:
            return None
        self._end_cancelled(instance, now)
        ready: list[Candidate] = [
            (sequence.queue[0][0], slot, sequence)
            for slot, sequence in enumerate(self._slots[instance])
            if sequence is not None and sequence.queue
        ]
        if not ready:
            return None
        oldest = min(ready)[2]
        shape = self._shape(oldest)
        # The oldest request decides the shape of the batch, so a rare shape does not starve.
        ready = [candidate for candidate in ready if self._shape(candidate[2]) == shape]
        since = oldest.queue[0][1].enqueued
        rows = self._rows_now(len(ready), now - since)
        if not rows:
            self._held[instance] = since + self._delay
            return None
        if self._direct:
            return self._start(instance, ready, tuple(slot for _, slot, _ in ready), now)
        return self._start(instance, sorted(ready)[:rows], tuple(range(rows)), now)

    def _end_cancelled(self, instance: int, now: int) -> None:
        """Ends the sequences whose next request was cancelled before it ran."""
        placed = [sequence for sequence in self._slots[instance] if sequence is not None]
        ended = [sequence for sequence in placed if sequence.queue and sequence.queue[0][1].cancelled]
        for sequence in ended:
            cancelled = sequence.take_whole()
            self._pending -= len(cancelled)
            error = Cancelled(f"sequence {sequence.id} of model '{self._model}': a request of it was cancelled")
            self._rejected += [(request, error) for request in cancelled]
            self._release(sequence)
        if ended:
            self._admit(now)

    def finished(self, batch: SequenceBatch, state_outputs: Tensors | None, now: int) -> None:
        """The batch ran: keeps the new states of its sequences and frees the slots of those that ended.

        ``state_outputs`` holds at least ``self.state_outputs``. Raises ``ModelFailed`` if they are not as configured;
        the batch then counts as failed.
        """
        try:
            states = self._tensors.scatter(state_outputs, batch.positions, batch.rows)
        except ModelFailed:
            self._settle(batch, now)
            raise
        for sequence, own in zip(batch.sequences, states, strict=True):
            sequence.states = own
        self._settle(batch, now)

    def failed(self, batch: SequenceBatch, now: int) -> None:
        """The batch failed: its sequences keep slot and state.

        A failed START leaves the initial state; a failed END ends its sequence, as no request can follow it.
        """
        self._settle(batch, now)

    def expire(self, now: int) -> list[Rejection]:
        """Ends sequences that were idle too long and frees their slots; returns the rejected requests.

        To be called at ``wake_at``, and after ``finished`` and ``failed``, which may reject sequences too.
        """
        while self._idle:
            sequence = next(iter(self._idle.values()))
            if sequence.idle_since + self._max_idle > now:
                break
            del self._idle[sequence.id]
            self._release(sequence)
        if self._backlog.deadline <= now:
            self._sweep(now)
        self._admit(now)
        rejected, self._rejected = self._rejected, []
        return rejected

    def drop_cancelled(self, now: int) -> list[Rejection]:
        """As ``expire``; also rejects sequences in the backlog that have a cancelled request."""
        self._sweep(now)
        return self.expire(now)

    def wake_at(self) -> int | None:
        """The next instant at which ``take`` or ``expire`` would return something without another event.

        Assumes that ``take`` was called since the last change for every instance without a batch.
        """
        if self._rejected:
            return 0
        instant = min(self._backlog.deadline, *self._held)
        if self._idle:
            instant = min(instant, next(iter(self._idle.values())).idle_since + self._max_idle)
        return None if instant == NEVER else instant

    def lose(self, instance: int) -> list[InferRequest]:
        """An instance is abandoned: its sequences end, and no sequence is placed there before ``restore``.

        Returns their queued requests. The batch that runs there must not be reported any more.
        """
        requests: list[InferRequest] = []
        for sequence in self._slots[instance]:
            if sequence is not None:
                requests += [request for _, request in sequence.queue]
                self._idle.pop(sequence.id, None)
                del self._sequences[sequence.id]
        self._pending -= len(requests)
        self._slots[instance] = [None] * len(self._slots[instance])
        self._free = [place for place in self._free if place[1] != instance]
        heapq.heapify(self._free)
        self._running[instance] = None
        self._held[instance] = NEVER
        return requests

    def restore(self, instance: int, now: int) -> None:
        """A lost instance has been replaced."""
        for slot in range(len(self._slots[instance])):
            heapq.heappush(self._free, (slot, instance))
        self._admit(now)

    def clear(self) -> list[InferRequest]:
        """Ends every sequence and returns the queued requests: the model is being unloaded.

        Batches that run are still to be reported.
        """
        requests = [request for request, _ in self._rejected]
        for sequence in self._sequences.values():
            requests += [request for _, request in sequence.queue]
            self._vacate(sequence)
        self._sequences.clear()
        self._idle.clear()
        self._backlog.clear()
        self._rejected.clear()
        self._held = [NEVER] * len(self._held)
        self._pending = 0
        return requests

    def _shape(self, sequence: Sequence) -> object:
        """Sequences with equal shapes may share a batch."""
        plan = sequence.queue[0][1].plan
        if not self._tensors.variable:
            return plan.shape_key
        states = self._tensors.initial if plan.sequence_start else sequence.states
        return plan.shape_key, tuple(state.shape for state in states)

    def _rows_now(self, ready: int, age: int) -> int:
        """How many of the ready requests to run now; 0 to wait for more."""
        rows = min(ready, self._max_rows)
        if age >= self._delay or rows == self._max_rows:
            return rows
        if self._direct:
            return rows if rows >= self._utilization * self._max_rows else 0
        return max((size for size in self._preferred if size <= rows), default=0)

    def _start(self, instance: int, chosen: list[Candidate], positions: tuple[int, ...], now: int) -> SequenceBatch:
        requests: list[InferRequest] = []
        for _, _, sequence in chosen:
            _, request = sequence.queue.popleft()
            if request.plan.sequence_start:
                sequence.states = self._tensors.initial
            request.dispatched = now
            requests.append(request)
        self._pending -= len(requests)
        sequences = tuple(sequence for _, _, sequence in chosen)
        batch = SequenceBatch(instance, tuple(requests), positions, sequences, self._tensors)
        self._running[instance] = batch
        return batch

    def _settle(self, batch: SequenceBatch, now: int) -> None:
        if self._running[batch.instance] is not batch:
            raise ValueError(f"this batch does not run on instance {batch.instance}: its end was reported before")
        self._running[batch.instance] = None
        for request, sequence in zip(batch.requests, batch.sequences, strict=True):
            if self._sequences.get(sequence.id) is not sequence:
                continue  # cleared meanwhile
            if request.plan.sequence_end:
                self._release(sequence)
            elif not sequence.queue:
                sequence.idle_since = now
                self._idle[sequence.id] = sequence
        self._admit(now)

    def _place(self, sequence: Sequence) -> None:
        sequence.place = slot, instance = heapq.heappop(self._free)
        self._slots[instance][slot] = sequence

    def _vacate(self, sequence: Sequence) -> None:
        if sequence.place is not None:
            slot, instance = sequence.place
            self._slots[instance][slot] = None
            heapq.heappush(self._free, sequence.place)
            sequence.place = None

    def _release(self, sequence: Sequence) -> None:
        """Ends the sequence of an id and frees its slot.

        Requests pushed under the same id since are a new sequence and join the backlog: otherwise a caller that never
        pauses would keep its slot forever.
        """
        self._vacate(sequence)
        sequence.states = ()
        if sequence.queue:
            self._backlog.join(sequence)
        else:
            del self._sequences[sequence.id]

    def _admit(self, now: int) -> None:
        while self._free and (sequence := self._backlog.next()) is not None:
            if sequence.is_stale(now):
                self._reject(sequence)
            else:
                self._place(sequence)

    def _sweep(self, now: int) -> None:
        for sequence in self._backlog.sweep(now):
            self._reject(sequence)

    def _reject(self, sequence: Sequence) -> None:
        del self._sequences[sequence.id]
        self._pending -= len(sequence.queue)
        self._rejected += sequence.rejections(self._model)
