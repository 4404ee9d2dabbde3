"""Divides the time of one request into parts that add up to it, from whatever records there are. Pure.

Durations of two processes are compared, never their instants: clocks of machines differ. What a record leaves open
stays with the part around it: without a worker's record, its time is one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from isochrone.observe.flights.messages import (
    ANSWERED,
    GC_PAUSE,
    STALL,
    AttemptFlight,
    Event,
    GatewayFlight,
    WorkerFlight,
)


class Stage(StrEnum):
    """Where time went."""

    WAITING_ROOM = "waiting for a worker"
    GATEWAY = "in the gateway"
    RETRY = "attempts before the last"
    HEDGE = "first attempt before its hedge"
    NETWORK = "network and sockets"
    AT_WORKER = "at the worker, without a record"
    RECEIVE = "received by the worker"
    QUEUE = "in the worker's queue"
    RUN = "run"
    BATCH_MATES = "run, longer with its batch-mates"
    SLOW_RUN = "run, longer than expected"
    ANSWER = "written by the worker"
    GC = "pauses of the garbage collector"
    STALL = "stalls of an event loop"


class Part(msgspec.Struct, frozen=True):
    """One part of a request's time."""

    stage: str
    ns: int


Span = tuple[int, int]


class Parts:
    """Parts that are taken from a total: together they never exceed it, and ``rest`` completes it."""

    def __init__(self, total_ns: int) -> None:
        self._left = max(0, total_ns)
        self._parts: dict[Stage, int] = {}

    def take(self, stage: Stage, ns: int) -> None:
        ns = min(max(0, ns), self._left)
        if ns:
            self._left -= ns
            self._parts[stage] = self._parts.get(stage, 0) + ns

    def move(self, source: Stage, target: Stage, ns: int) -> None:
        """A part of a part was something else."""
        ns = min(max(0, ns), self._parts.get(source, 0))
        if ns:
            self._parts[source] -= ns
            self._parts[target] = self._parts.get(target, 0) + ns

    def of(self, stage: Stage) -> int:
        return self._parts.get(stage, 0)

    def rest(self, stage: Stage) -> tuple[Part, ...]:
        """All parts, in the order of ``Stage``; what was not taken belongs to ``stage``."""
        self.take(stage, self._left)
        return tuple(Part(each.value, self._parts[each]) for each in Stage if self._parts.get(each))


def last_attempt(gateway: GatewayFlight) -> AttemptFlight | None:
    """The attempt that was answered, or that was in flight longest at the end."""
    if not gateway.attempts:
        return None
    answered = [attempt for attempt in gateway.attempts if attempt.outcome == ANSWERED]
    return answered[-1] if answered else max(gateway.attempts, key=lambda attempt: (attempt.ended, attempt.sent))


def divide(
    gateway: GatewayFlight | None,
    worker: WorkerFlight | None,
    gateway_events: Sequence[Event] = (),
    worker_events: Sequence[Event] = (),
    typical_run_ns: int = 0,
) -> tuple[Part, ...]:
    """``typical_run_ns``: of a run alone, where it is fastest; 0: not known."""
    if gateway is None:
        if worker is None:
            return ()
        parts = Parts(worker.ended - worker.arrived)
        _of_worker(parts, worker, worker_events, typical_run_ns, worker.ended - worker.arrived)
        return parts.rest(Stage.RECEIVE)
    parts = Parts(gateway.ended - gateway.arrived)
    if gateway.waited_since:
        went_on = gateway.admitted if gateway.admitted > gateway.waited_since else gateway.ended
        parts.take(Stage.WAITING_ROOM, went_on - gateway.waited_since)
    last = last_attempt(gateway)
    if last is None:
        return parts.rest(Stage.GATEWAY)
    first = min(gateway.attempts, key=lambda attempt: attempt.sent)
    parts.take(Stage.HEDGE if last.is_hedge else Stage.RETRY, last.sent - first.sent)
    length = max(0, last.ended - last.sent)
    if worker is None:
        parts.take(Stage.AT_WORKER, length)
    else:
        there = min(max(0, worker.ended - worker.arrived), length)
        parts.take(Stage.NETWORK, length - there)
        _of_worker(parts, worker, worker_events, typical_run_ns, there)
        # A process that pauses reads late what has arrived: that looks like the network.
        before = (worker.arrived - (length - there), worker.arrived)
        _move_pauses(parts, Stage.NETWORK, before, worker_events)
    around = Stage.NETWORK if worker is not None else Stage.AT_WORKER
    _move_pauses(parts, around, (last.sent, last.ended), gateway_events)
    rest = parts.rest(Stage.GATEWAY)
    own = next((part.ns for part in rest if part.stage == Stage.GATEWAY.value), 0)
    if own:
        outside = ((gateway.arrived, gateway.sent or gateway.ended), (last.ended, gateway.ended))
        for span in outside:
            _move_pauses(parts, Stage.GATEWAY, span, gateway_events)
        rest = parts.rest(Stage.GATEWAY)
    return rest


def _of_worker(parts: Parts, worker: WorkerFlight, events: Sequence[Event], typical_ns: int, length: int) -> None:
    """The stages of a worker, as far as they fit into ``length``."""
    ran = worker.compute_start > 0
    queued_until = worker.compute_start if ran else worker.ended
    ended = worker.compute_end if worker.compute_end else worker.ended
    left = length
    for stage, began, end in (
        (Stage.RECEIVE, worker.arrived, worker.enqueued or worker.arrived),
        (Stage.QUEUE, worker.enqueued or worker.arrived, queued_until),
        (Stage.RUN, worker.compute_start, ended if ran else 0),
        (Stage.ANSWER, ended, worker.ended if ran else 0),
    ):
        ns = min(max(0, end - began), left)
        left -= ns
        parts.take(stage, ns)
        # A run on the event loop's thread stalls the loop itself.
        _move_pauses(parts, stage, (began, end), events, with_stalls=stage is not Stage.RUN)
    parts.take(Stage.RECEIVE, left)
    if typical_ns > 0:
        together = worker.batch is not None and worker.batch.requests > 1
        excess = parts.of(Stage.RUN) - typical_ns
        parts.move(Stage.RUN, Stage.BATCH_MATES if together else Stage.SLOW_RUN, excess)


def _move_pauses(parts: Parts, stage: Stage, span: Span, events: Iterable[Event], *, with_stalls: bool = True) -> None:
    pauses = [(event.began, event.ended) for event in events if event.kind == GC_PAUSE]
    stalls = [(event.began, event.ended) for event in events if event.kind == STALL] if with_stalls else []
    paused = overlap(span, pauses)
    parts.move(stage, Stage.GC, paused)
    parts.move(stage, Stage.STALL, overlap(span, [*pauses, *stalls]) - paused)


def overlap(span: Span, others: Iterable[Span]) -> int:
    """How much of a time the others cover together."""
    covered, reached = 0, span[0]
    for began, ended in sorted(others):
        began, ended = max(began, reached), min(ended, span[1])
        if ended > began:
            covered += ended - began
            reached = ended
    return covered
