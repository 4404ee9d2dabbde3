"""What a worker keeps of its last requests: records that are written over in place. On the way of every request.

A record has the values that statistics are made from anyway. Native code writes them into an object that exists
already: nothing is allocated, and nothing becomes garbage after thousands of requests. Records refer to nothing that is
large or holds a connection. ``worker.flights`` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from isochrone.observe.flights.ring import Ring

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest

#: Characters of an id that are kept.
_MAX_ID: Final = 200


class FlightRecord:
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


class FlightRing:
    """The last ``size`` records, rounded up to a power of two. A record is valid until the ring has come round."""

    __slots__ = ("_mask", "_records", "count")

    def __init__(self, size: int) -> None:
        self._mask = (1 << max(0, size - 1).bit_length()) - 1
        #: Made when they are first needed.
        self._records: list[FlightRecord] = []
        #: Records that were ever kept.
        self.count = 0

    def __len__(self) -> int:
        return len(self._records)

    def next(self) -> FlightRecord:
        """The record to write to: a new one, or the oldest."""
        count = self.count
        self.count = count + 1
        if count <= self._mask:
            record = FlightRecord()
            self._records.append(record)
            return record
        return self._records[count & self._mask]

    def latest(self) -> Iterator[FlightRecord]:
        """The newest first."""
        for number in range(self.count - 1, self.count - 1 - len(self._records), -1):
            yield self._records[number & self._mask]

    def since(self, count: int) -> list[FlightRecord]:
        """Records kept since ``count`` was that, as far as they are still there; the oldest first."""
        first = max(count, self.count - len(self._records))
        return [self._records[number & self._mask] for number in range(first, self.count)]

    def oldest(self) -> FlightRecord | None:
        """The record that is written over next; None: nothing was kept."""
        if not self._records:
            return None
        return self._records[self.count & self._mask] if self.count > self._mask else self._records[0]


class WorkerFlightRecords:
    """The last requests of a worker; those that missed their deadline, which stay longer; and the last batches."""

    __slots__ = ("batches", "latest", "missed")

    def __init__(self, requests: int) -> None:
        self.latest = FlightRing(requests)
        self.missed = FlightRing(max(1, requests // 4))
        #: (model and version, start, rows, requests, expected time, requests that waited, instance).
        self.batches = Ring(requests)

    def answered(self, who: tuple[str, str], request: InferRequest, now: int, rows: int) -> None:
        number = self.latest.count
        self.latest.next().fill(number, who, request, now, rows, None)
        if now > request.deadline:
            self.missed.next().fill(number, who, request, now, rows, None)

    def answered_alone(self, who: tuple[str, str], request: InferRequest, now: int, rows: int) -> None:
        """Of a request that ran alone: it left its start and its end only."""
        number = self.latest.count
        self.latest.next().fill_alone(number, who, request, now, rows)
        if now > request.deadline:
            self.missed.next().fill_alone(number, who, request, now, rows)

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
        self.latest.next().fill(number, who, request, now, rows, failure)
        if is_miss or now > request.deadline:
            self.missed.next().fill(number, who, request, now, rows, failure)

    def records(self) -> Iterator[FlightRecord]:
        """Every request once, those of ``latest`` first, and of each the newest first."""
        yield from self.latest.latest()
        oldest = self.latest.count - len(self.latest)
        for record in self.missed.latest():
            if record.number < oldest:
                yield record
