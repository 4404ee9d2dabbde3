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
        number: int,
        who: tuple[str, str],
        request: InferRequest,
        now: int,
        rows: int,
        failure: tuple[str, str, int, int] | None,
    ) -> None:
        self.number = number
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

    def fill_alone(self, number: int, who: tuple[str, str], request: InferRequest, now: int, rows: int) -> None:
        self.fill(number, who, request, now, rows, None)
        self.dispatched = self.compute_start = self.infer_start
        self.compute_end = self.infer_end


class WorkerFlightRecords(Flights):
    """The last requests of a worker, and its last batches."""

    __slots__ = ("batches",)

    def __init__(self, requests: int) -> None:
        super().__init__(requests, WorkerFlightRecord)
        #: (model and version, start, rows, requests, expected time, requests that waited, instance).
        self.batches = Ring(requests)

    def answered(self, who: tuple[str, str], request: InferRequest, now: int, rows: int) -> None:
        number = self.latest.count
        record: WorkerFlightRecord = self.latest.next()
        record.fill(number, who, request, now, rows, None)
        if now > request.deadline:
            missed: WorkerFlightRecord = self.missed.next()
            missed.fill(number, who, request, now, rows, None)

    def answered_alone(self, who: tuple[str, str], request: InferRequest, now: int, rows: int) -> None:
        """Of a request that ran alone: it left its start and its end only."""
        number = self.latest.count
        record: WorkerFlightRecord = self.latest.next()
        record.fill_alone(number, who, request, now, rows)
        if now > request.deadline:
            missed: WorkerFlightRecord = self.missed.next()
            missed.fill_alone(number, who, request, now, rows)

    def failed(
        self,
        who: tuple[str, str],
        request: InferRequest,
        now: int,
        failure: tuple[str, str, int, int],
        *,
        is_miss: bool,
    ) -> None:
        rows = request.plan.batch_size
        number = self.latest.count
        record: WorkerFlightRecord = self.latest.next()
        record.fill(number, who, request, now, rows, failure)
        if is_miss or now > request.deadline:
            missed: WorkerFlightRecord = self.missed.next()
            missed.fill(number, who, request, now, rows, failure)
