"""What a worker keeps of its last requests: records that are written over in place. On the way of every request.

A record has the values that statistics are made from anyway. It refers to nothing that is large or holds a connection.
``worker.flights`` reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isochrone.observe.flights.ring import Flights, Ring

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest

#: Characters of an id that are kept.
_MAX_ID: Final = 200


class WorkerFlightRecord:
    """One request. Instants are monotonic ns; 0: it did not come so far."""

    __slots__ = (
        "arrived",
        "compute_end",
        "compute_start",
        "deadline",
        "dispatched",
        "ended",
        "enqueued",
        "failure",
        "id",
        "infer_end",
        "infer_start",
        "number",
        "priority",
        "rows",
        "who",
    )

    def __init__(self) -> None:
        #: Of the request among all that were kept: the same in both rings.
        self.number = 0
        #: Model and version.
        self.who: tuple[str, str] = ("", "")
        self.id = ""
        self.rows = 0
        self.arrived = self.enqueued = self.dispatched = self.compute_start = 0
        self.infer_start = self.infer_end = self.compute_end = self.ended = 0
        self.deadline = 0
        self.priority = 0
        #: Of one that failed: code, message, how late it would have been, requests in the queue.
        self.failure: tuple[str, str, int, int] | None = None

    def fill(
        self,
        count: int,
        who: tuple[str, str],
        request: InferRequest,
        now: int,
        rows: int,
        failure: tuple[str, str, int, int] | None,
    ) -> None:
        """``count``: of the records so far, this one included."""
        self.number = count - 1
        self.who = who
        named = request.id or request.caller_id
        self.id = named if len(named) <= _MAX_ID else named[:_MAX_ID]
        self.rows = rows
        self.arrived = request.arrived
        self.enqueued = request.enqueued
        self.dispatched = request.dispatched
        self.compute_start = request.compute_start
        self.infer_start = request.infer_start
        self.infer_end = request.infer_end
        self.compute_end = request.compute_end
        self.ended = now
        self.deadline = request.deadline
        self.priority = request.plan.priority
        self.failure = failure

    def copy(self, other: WorkerFlightRecord) -> None:
        self.number = other.number
        self.who = other.who
        self.id = other.id
        self.rows = other.rows
        self.arrived = other.arrived
        self.enqueued = other.enqueued
        self.dispatched = other.dispatched
        self.compute_start = other.compute_start
        self.infer_start = other.infer_start
        self.infer_end = other.infer_end
        self.compute_end = other.compute_end
        self.ended = other.ended
        self.deadline = other.deadline
        self.priority = other.priority
        self.failure = other.failure


class WorkerFlightRecords(Flights):
    """The last requests of a worker, and its last batches."""

    __slots__ = ("batches",)

    def __init__(self, requests: int) -> None:
        super().__init__(requests, WorkerFlightRecord)
        #: (model and version, start, rows, requests, expected time, requests that waited, instance).
        self.batches = Ring(requests)

    def answered(self, who: tuple[str, str], request: InferRequest, now: int, rows: int) -> None:
        self._next().fill(self.latest.count, who, request, now, rows, None)
        if now > request.deadline:
            self._keep_miss()

    def answered_alone(self, who: tuple[str, str], request: InferRequest, now: int, rows: int) -> None:
        """Of a request that ran alone: it left its start and its end only."""
        record = self._next()
        record.fill(self.latest.count, who, request, now, rows, None)
        record.dispatched = record.compute_start = record.infer_start
        record.compute_end = record.infer_end
        if now > request.deadline:
            self._keep_miss()

    def answered_without_run(self, who: tuple[str, str], request: InferRequest, now: int) -> None:
        """Of a request that a cache answered: its stamps of a run are those of no run."""
        record = self._next()
        record.fill(self.latest.count, who, request, now, request.plan.batch_size, None)
        record.compute_start = record.infer_start = record.infer_end = record.compute_end = 0
        if now > request.deadline:
            self._keep_miss()

    def failed(
        self,
        who: tuple[str, str],
        request: InferRequest,
        now: int,
        failure: tuple[str, str, int, int],
        *,
        is_miss: bool,
    ) -> None:
        self._next().fill(self.latest.count, who, request, now, request.plan.batch_size, failure)
        if is_miss or now > request.deadline:
            self._keep_miss()

    def _next(self) -> WorkerFlightRecord:
        record: WorkerFlightRecord = self.latest.next()
        return record

    def _keep_miss(self) -> None:
        """The last record is of a request that missed its deadline."""
        missed: WorkerFlightRecord = self.missed.next()
        missed.copy(self.latest.newest())
