"""Which requests of stateful models run together: Triton's sequence batching, as a pure decision.

Stands where ``scheduler`` stands for stateless models: the instance shell pushes requests in, takes batches
out and reports how they ended. Time is an argument; nothing here may wait, lock, read a clock or run a model.
All calls come from one thread, but for ``SequenceBatch.inputs``, which touches nothing that changes.

A sequence holds one slot (instance, number) from START until END has run or it was idle too long; sequences
without a slot wait, first come first served. Both strategies share that. They differ in the rows of a batch:
*direct* makes the slot's number the row, so a model may keep state by row, and rows without a request are
marked not READY; *oldest* packs the oldest ready requests densely, so slots may outnumber rows.

Deadlines and cancellation: a request whose sequence holds a slot runs although it has expired, because the
sequence's later answers depend on it and a model that keeps state of its own counts on START and END; the
transport discards the answer. One that was cancelled before its turn ends its sequence instead: those queued
behind it are cancelled too, since their answers would lack it, and the next request needs START. A sequence
that still waits for its slot has run nothing, so it is dropped whole as soon as one of its requests is expired
or cancelled. All as Triton does.
"""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isochrone.clock import MICROSECOND, NEVER
from isochrone.errors import Cancelled, ConfigError, InvalidArgument, ModelFailed, QueueFull
from isochrone.worker.sequences.backlog import Backlog, Sequence
from isochrone.worker.sequences.tensors import SequenceTensors

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.sequences.backlog import Refusal, SequenceId

    #: What ``take`` chooses from: the request's number, its slot, its sequence. The first is unique.
    Candidate = tuple[int, int, Sequence]

#: Triton's default for ``max_sequence_idle_microseconds``.
DEFAULT_IDLE_MICROSECONDS = 1_000_000


class SequenceBatch:
    """Requests of different sequences that run at once on one instance."""

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
        #: Rows the model sees, those without a request included.
        self.rows = positions[-1] + 1
        #: The batcher's own record; not for others to touch.
        self.sequences = sequences
        self._states = tuple(sequence.states for sequence in sequences)
        self._tensors = tensors

    def row_of(self, index: int) -> int:
        """The row of ``requests[index]`` in inputs and outputs; 0 for a model without a batch dimension."""
        return self.positions[index]

    def inputs(self) -> Tensors:
        """Everything the model is given: callers' inputs, control tensors, implicit state."""
        return self._tensors.gather(self.requests, self._states, self.positions, self.rows)


class SequenceBatcher:
    """The sequences of one model version and the slots they run in."""

    def __init__(self, config: Any, instances: int, directory: Path | None = None, max_queue_size: int = 0) -> None:
        """``config`` is a completed ``ModelConfig`` with ``sequence_batching``; ``directory`` is the model's.

        ``max_queue_size`` (0: none) bounds the requests of sequences that wait for a slot, all together, and
        apart from those the requests of each sequence that has one: a crowd at the door never blocks those
        inside, whose END is what lets the crowd in.
        """
        batching = config.sequence_batching
        self._model: str = config.name
        self._max_rows: int = max(1, config.max_batch_size)
        self._direct: bool = not batching.HasField("oldest")
        slots = self._max_rows if self._direct else batching.oldest.max_candidate_sequences or self._max_rows
        _check(config, slots)
        strategy = batching.direct if self._direct else batching.oldest
        self._delay: int = strategy.max_queue_delay_microseconds * MICROSECOND
        self._preferred = tuple(batching.oldest.preferred_batch_size)
        self._utilization: float = batching.direct.minimum_slot_utilization
        self._max_idle: int = (batching.max_sequence_idle_microseconds or DEFAULT_IDLE_MICROSECONDS) * MICROSECOND
        self._max_queue_size = max_queue_size
        self._tensors = SequenceTensors(config, directory)

        self._sequences: dict[SequenceId, Sequence] = {}
        #: By instance, then slot.
        self._slots: list[list[Sequence | None]] = [[None] * slots for _ in range(instances)]
        #: A heap of (slot, instance): lowest slot first spreads sequences over instances, keeps batches dense.
        self._free = [(slot, instance) for slot in range(slots) for instance in range(instances)]
        self._backlog = Backlog()
        #: Sequences that hold a slot and have nothing to run, longest idle first: time never goes back.
        self._idle: dict[SequenceId, Sequence] = {}
        self._running: list[SequenceBatch | None] = [None] * instances
        #: Until when ``take`` holds an instance's requests back in the hope of more; NEVER: it does not.
        self._held: list[int] = [NEVER] * instances
        self._refused: list[Refusal] = []
        self._pending = 0
        self._pushed = 0

    @property
    def state_outputs(self) -> tuple[str, ...]:
        """Outputs that must be asked of the model for ``finished``, whether or not a caller wants them."""
        return tuple(state.output_name for state in self._tensors.states)

    def pending(self) -> int:
        """Requests pushed and neither taken nor refused."""
        return self._pending

    def slot_of(self, sequence_id: SequenceId) -> tuple[int, int] | None:
        """(instance, slot) of a live sequence; None if it waits for one or does not exist."""
        sequence = self._sequences.get(sequence_id)
        return None if sequence is None or sequence.place is None else sequence.place[::-1]

    def push(self, request: InferRequest, now: int) -> int | None:
        """Queues a request, or raises before anything has changed.

        Returns the instance that may now have something to take; None if the sequence waits for a slot. START
        on a live sequence restarts it behind what it has queued: requests under one id run in pushed order.
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
        self._check_room(sequence)
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
        """The next batch for an instance; None if there is none yet, or the last one has not been settled."""
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
        # The oldest request decides the shape of the batch, so an odd shape waits its turn, not for ever.
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
        """Ends the sequences whose next request was cancelled before its turn."""
        ended = [one for one in self._slots[instance] if one is not None and one.queue and one.queue[0][1].cancelled]
        for sequence in ended:
            cancelled = sequence.take_whole()
            self._pending -= len(cancelled)
            error = Cancelled(f"sequence {sequence.id} of model '{self._model}': a request of it was cancelled")
            self._refused += [(request, error) for request in cancelled]
            self._release(sequence)
        if ended:
            self._admit(now)

    def finished(self, batch: SequenceBatch, state_outputs: Tensors | None, now: int) -> None:
        """The batch ran: keeps its sequences' new state, frees the slots of those that ended, admits others.

        ``state_outputs`` holds at least ``self.state_outputs``. Raises ``ModelFailed`` if they are not as
        configured; the batch then counts as failed, and its callers are to be told so.
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
        """The batch did not run: its sequences keep slot and state.

        A failed START leaves the initial state; a failed END ends its sequence, as no request can follow it.
        """
        self._settle(batch, now)

    def expire(self, now: int) -> list[Refusal]:
        """Ends sequences that were idle too long and frees their slots; returns what will not run, and why.

        To be called at ``wake_at``, and after ``finished`` and ``failed``, which may refuse sequences too.
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
        refused, self._refused = self._refused, []
        return refused

    def drop_cancelled(self, now: int) -> list[Refusal]:
        """As ``expire``, and refuses waiting sequences whose caller has gone before their turn for a slot."""
        self._sweep(now)
        return self.expire(now)

    def wake_at(self) -> int | None:
        """The next instant at which ``take`` or ``expire`` decides differently though nothing else happens.

        Counts on ``take`` having been tried since the last change on every instance without a batch.
        """
        if self._refused:
            return 0
        instant = min(self._backlog.deadline, *self._held)
        if self._idle:
            instant = min(instant, next(iter(self._idle.values())).idle_since + self._max_idle)
        return None if instant == NEVER else instant

    def lose(self, instance: int) -> list[InferRequest]:
        """An instance is given up: its sequences end with their state, and nobody is placed there before ``restore``.

        Returns what they had queued; the batch that runs is not to be settled any more.
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
        """An instance that was lost has a successor."""
        for slot in range(len(self._slots[instance])):
            heapq.heappush(self._free, (slot, instance))
        self._admit(now)

    def clear(self) -> list[InferRequest]:
        """Forgets every sequence and returns what was queued: the model is going away.

        Batches that run are still to be settled.
        """
        requests = [request for request, _ in self._refused]
        for sequence in self._sequences.values():
            requests += [request for _, request in sequence.queue]
            self._vacate(sequence)
        self._sequences.clear()
        self._idle.clear()
        self._backlog.clear()
        self._refused.clear()
        self._held = [NEVER] * len(self._held)
        self._pending = 0
        return requests

    def _check_room(self, sequence: Sequence | None) -> None:
        if not self._max_queue_size or (sequence is None and self._free):
            return
        if sequence is not None and sequence.place is not None:
            queued, whose = len(sequence.queue), f"sequence {sequence.id} has"
        else:
            queued, whose = self._backlog.requests, "sequences that wait for a slot have"
        if queued >= self._max_queue_size:
            raise QueueFull(
                f"Exceeds maximum queue size: {whose} {queued} requests queued for model '{self._model}',"
                f" limit {self._max_queue_size}"
            )

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
            raise ValueError(f"this batch does not run on instance {batch.instance}: it was settled already")
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
        """Ends what ran under an id and frees its slot.

        What was pushed under the same id since is a new sequence and lines up again: otherwise a caller that
        never pauses would keep its slot from the backlog for ever.
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
                self._refuse(sequence)
            else:
                self._place(sequence)

    def _sweep(self, now: int) -> None:
        for sequence in self._backlog.sweep(now):
            self._refuse(sequence)

    def _refuse(self, sequence: Sequence) -> None:
        del self._sequences[sequence.id]
        self._pending -= len(sequence.queue)
        self._refused += sequence.refusals(self._model)


def _check(config: Any, slots: int) -> None:
    batching, where = config.sequence_batching, f"{config.name}/config.pbtxt"
    if batching.iterative_sequence:
        raise ConfigError(where, "sequence_batching.iterative_sequence", "false: it is not supported", "true")
    utilization = batching.direct.minimum_slot_utilization
    if not 0 <= utilization <= 1:
        key = "sequence_batching.direct.minimum_slot_utilization"
        raise ConfigError(where, key, "a share from 0 to 1", str(utilization))
    if slots < 1:
        key = "sequence_batching.oldest.max_candidate_sequences"
        raise ConfigError(where, key, "at least 1, or 0 for max_batch_size", str(slots))
    for size in batching.oldest.preferred_batch_size:
        if not 1 <= size <= max(1, config.max_batch_size):
            key = "sequence_batching.oldest.preferred_batch_size"
            raise ConfigError(where, key, f"from 1 to max_batch_size {config.max_batch_size}", str(size))
