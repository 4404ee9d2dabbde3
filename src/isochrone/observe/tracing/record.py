"""The record of one finished request: plain values that the event loop leaves for the exporter's thread.

The event loop makes tuples in the order of ``RequestRecord``; the exporter reads them by name. Instants are monotonic
ns, and 0 if the request did not come so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

#: Why a trace is kept, in the order in which reasons are looked for.
DEADLINE_MISS: Final = "deadline_miss"
ERROR: Final = "error"
#: The caller's trace is sampled (W3C).
CALLER: Final = "caller"
#: One in ``trace_rate``.
SHARE: Final = "share"
#: Among the slowest of its model in its minute.
SLOWEST: Final = "slowest"
REASONS: Final = (DEADLINE_MISS, ERROR, CALLER, SHARE, SLOWEST)


class RequestRecord(NamedTuple):
    """One request to one model. A step of an ensemble is a record in ``steps`` of the ensemble's record."""

    #: One of REASONS; "": a step, which is kept with its ensemble.
    reason: str
    model: str
    version: str
    request_id: str
    rows: int
    arrived: int
    enqueued: int
    dispatched: int
    compute_start: int
    infer_start: int
    infer_end: int
    compute_end: int
    #: The answer was handed to the transport.
    ended: int
    deadline: int
    trace_id: int
    span_id: int
    #: 0: the request begins its trace.
    parent_id: int
    #: ``tracestate`` of the caller, as it came.
    trace_state: str
    #: Of an error; "": none.
    error_code: str
    error_message: str
    #: Of a batch of several requests.
    batch: BatchMembers | None
    #: The records of the requests that this one made in this process, as tuples; None: it made none, here or elsewhere.
    steps: list[tuple[Any, ...]] | None
    #: Of a model that generates: begin, end, tokens of the request, whether they are of its prompt, sequences of the
    #: step, and steps in this entry; None: it does not.
    generation: Sequence[tuple[int, int, int, bool, int, int]] | None = None


class BatchMembers:
    """The requests of one batch. The event loop adds to it while it answers them."""

    __slots__ = ("callers", "kept", "requests", "rows", "span_id")

    def __init__(self, span_id: int, requests: int, rows: int) -> None:
        #: Of the batch: the same in the trace of every member.
        self.span_id = span_id
        self.requests = requests
        self.rows = rows
        #: (trace, span, parent span) of each member that is kept, or is if its ensemble is.
        self.kept: list[tuple[int, int, int]] = []
        #: (trace, span) of the callers of all members that sent a trace context.
        self.callers: list[tuple[int, int]] = []


class TraceQueue:
    """Records on their way from the event loop to the exporter: bounded; the newest are dropped and counted.

    One thread puts, one takes: both ends of a ``deque`` are safe without a lock.
    """

    __slots__ = ("_limit", "_records", "dropped", "kept")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: deque[tuple[Any, ...]] = deque()
        self.dropped = 0
        #: By reason.
        self.kept = dict.fromkeys(REASONS, 0)

    def __len__(self) -> int:
        return len(self._records)

    def put(self, record: tuple[Any, ...]) -> bool:
        """``record``: the values of a record, of which the first is the reason. False: it was dropped."""
        if len(self._records) >= self._limit:
            self.dropped += 1
            return False
        self._records.append(record)
        self.kept[record[0]] += 1
        return True

    def take(self, most: int) -> list[tuple[Any, ...]]:
        """The oldest records, at most so many."""
        taken: list[tuple[Any, ...]] = []
        while self._records and len(taken) < most:
            taken.append(self._records.popleft())
        return taken
