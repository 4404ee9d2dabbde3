"""The batches that a queue is expected to form, and whether one more request fits. Pure.

``choose`` forms one batch from entries in order. ``BatchPlan`` chains such batches over the instances, so that
``BatchQueue.push`` knows whether a new request would be in time. Both use the same rules: a request that the plan
admitted is in time if the curve is right and no other request overtakes it.

The plan depends on the arrival rate, for this reason. A batch must meet the deadline of its oldest request, so the
first request limits the size of the batch. Under overload, a request that arrives just after a batch has started can
still be answered, but only by a batch so small that it wastes the instance; the next batch then starts late for its own
oldest request, and so on, down to batches of one (34 % of capacity at twice the sustainable load). So a request may
*begin* a planned batch only if all requests expected to join before the start also fit within its deadline. Requests
that arrive too early in the cycle are rejected immediately, and the later ones fill a large batch. At low load few
requests are expected to join, and none is rejected. Large MLP (1.7 ms alone, 7.2 ms for 16), 10 ms deadline, twice the
capacity: 89 % of the capacity is answered in time, where 92 % is the limit of a cycle of equal batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.scheduling.latency_curve import LatencyCurve


#: As in ``isochrone.clock``, which a pure decision does not import.
NEVER = (1 << 62) - 1


class Entry(NamedTuple):
    """One queued request. Entries compare by the first two fields, which are unique together."""

    #: The earlier of its deadline and ``expires``.
    key: int
    order: int
    request: InferRequest
    #: Its latest start by the queue policy's timeout. NEVER: none.
    expires: int
    level: int


class Choice:
    """One batch from a queue. Its lists partition the entries that were examined, a prefix of the queue."""

    __slots__ = ("late", "limit", "passed", "rows", "taken")

    def __init__(self) -> None:
        self.taken: list[Entry] = []
        #: Entries that cannot be in time even alone, have expired, or were cancelled.
        self.late: list[Entry] = []
        #: Entries for a later batch: another shape, or no room.
        self.passed: list[Entry] = []
        self.rows = 0
        #: The latest end of compute that meets every deadline in ``taken``.
        self.limit = NEVER


#: Limit of entries that are skipped while one batch is filled.
_MAX_PASSED = 64
#: Entries that a plan examines; it assumes full batches for the others.
_PLANNED_ENTRIES = 128


def choose(entries: Iterable[Entry], at: int, maximum: int, margin: int, curve: LatencyCurve) -> Choice:
    """The batch that would start at ``at``: the first entry that can be in time, and the entries that fit with it."""
    choice = Choice()
    estimates, known = curve.estimates, curve.max_rows
    rows, limit = 0, NEVER
    shape: object = None
    for entry in entries:
        request = entry.request
        plan = request.plan
        size = plan.batch_size
        latest_end = request.deadline
        if latest_end != NEVER:
            alone = estimates[size] if size <= known else curve.estimate(size)
            # Without a measurement only a deadline that has passed is certainly missed.
            latest_end -= margin if alone else 1
            if at + alone > latest_end:
                choice.late.append(entry)
                continue
        if request.cancelled or entry.expires < at:
            choice.late.append(entry)
            continue
        if latest_end > limit:
            latest_end = limit
        if not rows:
            shape = plan.shape_key
        elif plan.shape_key != shape:
            choice.passed.append(entry)
            if len(choice.passed) >= _MAX_PASSED:
                break
            continue
        elif rows + size > maximum or (latest_end != NEVER and at + curve.estimate(rows + size) > latest_end):
            choice.passed.append(entry)
            if latest_end < limit and len(choice.passed) < _MAX_PASSED and rows + size <= maximum:
                # Its own deadline does not fit, behind a higher level: it will be late and need not exclude others.
                continue
            # In order: no entry of the same shape overtakes one that does not fit.
            break
        choice.taken.append(entry)
        rows += size
        limit = latest_end
        if rows >= maximum:
            break
    choice.rows, choice.limit = rows, limit
    return choice


class PlannedBatch:
    """One batch of a plan."""

    __slots__ = ("last", "limit", "rows", "shape", "start")

    def __init__(self, start: int, rows: int, limit: int, shape: object, last: tuple[int, int]) -> None:
        self.start = start
        self.rows = rows
        self.limit = limit
        self.shape = shape
        #: (level, key) of its last entry: an entry that sorts before it belongs to this batch or an earlier one.
        self.last = last


def _last(batch: PlannedBatch) -> tuple[int, int]:
    return batch.last


class BatchPlan:
    """The batches that a queue is expected to form. Updated by each arrival, rebuilt when a batch deviates from it."""

    __slots__ = ("_curve", "_free", "_max_rows", "batches", "margin")

    def __init__(self, max_rows: int, margin: int, curve: LatencyCurve) -> None:
        self._max_rows = max_rows
        #: Reserve before each deadline.
        self.margin = margin
        self._curve = curve
        #: When each instance is free, without the last batch; a heap whose first element is the instance of that batch.
        self._free: list[int] = [0]
        self.batches: list[PlannedBatch] = []

    def make(self, entries: Sequence[Entry], now: int, busy_until: Sequence[int]) -> None:
        """Builds the plan from the queue."""
        free = self._free = [end if end > now else now for end in busy_until]
        heapify(free)
        curve, maximum = self._curve, self._max_rows
        self.batches = []
        left: Sequence[Entry] = entries[:_PLANNED_ENTRIES]
        while left:
            start = self._next_start()
            choice = choose(left, start, maximum, self.margin, curve)
            examined = len(choice.taken) + len(choice.late) + len(choice.passed)
            if choice.taken:
                last = choice.taken[-1]
                shape = last.request.plan.shape_key
                self._append(PlannedBatch(start, choice.rows, choice.limit, shape, (last.level, last.key)))
            left = [*choice.passed, *left[examined:]]
        beyond = sum(entry.request.plan.batch_size for entry in entries[_PLANNED_ENTRIES:])
        while beyond > 0:
            rows = min(maximum, beyond) if beyond < 4 * maximum else beyond
            last = entries[-1]
            self._append(PlannedBatch(self._next_start(), rows, NEVER, None, (last.level, last.key)))
            beyond -= rows

    def started(self, rows: int, last: tuple[int, int]) -> bool:
        """The first batch has started. Returns whether it was as planned on the only instance: the plan stays valid."""
        if len(self._free) > 1 or len(self.batches) < 2:
            return False
        first = self.batches[0]
        if first.rows != rows or first.last != last:
            return False
        del self.batches[0]
        return True

    def move(self, free: int) -> None:
        """The only instance will be free at another time than planned."""
        by = free - self.batches[0].start
        for batch in self.batches:
            batch.start += by

    def _next_start(self) -> int:
        """When the earliest instance is free, including the last planned batch."""
        if not self.batches:
            return self._free[0]
        last, free = self.batches[-1], self._free
        end = last.start + self._curve.estimate(last.rows)
        # The second smallest element of a heap is one of the two below its first.
        return min(end, *free[1:3]) if len(free) > 1 else end

    def _append(self, batch: PlannedBatch) -> None:
        if self.batches:
            last = self.batches[-1]
            heapreplace(self._free, last.start + self._curve.estimate(last.rows))
        self.batches.append(batch)

    def _catch_up(self, now: int) -> None:
        """Moves a plan whose first start has passed."""
        lag = now - self.batches[0].start
        if lag > 0:
            for batch in self.batches:
                batch.start += lag

    def add(self, position: tuple[int, int], rows: int, latest_end: int, shape: object, now: int, rate: float) -> int:
        """Adds a request at its place in the order. Returns by how much it would be late; 0 or less: it was added.

        ``rate`` is the arrival rate in rows per ns.
        """
        curve = self._curve
        if self.batches:
            self._catch_up(now)
            batch = self.batches[-1]
            if position < batch.last:
                index = bisect_right(self.batches, position, key=_last)
                request = PlannedBatch(now, rows, latest_end, shape, position)
                return self._insert(index, request, now, rate)
            if batch.shape == shape:
                together = batch.rows + rows
                limit = self._limit_with(batch, together, latest_end, now, rate)
                if together <= self._max_rows and batch.start + curve.estimate(together) <= limit:
                    batch.rows, batch.last = together, position
                    batch.limit = min(batch.limit, latest_end)
                    return 0
        start = self._next_start()
        if start < now:
            start = now
        expected_rows = rows + rate * (start - now)
        expected = curve.estimate(int(expected_rows) if expected_rows < self._max_rows else self._max_rows)
        miss = start + expected - latest_end
        if miss <= 0:
            self._append(PlannedBatch(start, rows, latest_end, shape, position))
        return miss

    def _insert(self, index: int, request: PlannedBatch, now: int, rate: float) -> int:
        """Inserts a request into the batch at ``index``, or before it as a batch of its own, if none becomes late.

        A batch of its own is a cautious estimate; the real batches will not be worse.
        """
        curve = self._curve
        batch = self.batches[index]
        together = batch.rows + request.rows
        if batch.shape == request.shape and together <= self._max_rows:
            limit = self._limit_with(batch, together, request.limit, now, rate)
            longer = curve.estimate(together) - curve.estimate(batch.rows)
            if batch.start + curve.estimate(together) <= limit and self._delay(index + 1, longer) <= 0:
                batch.rows, batch.limit = together, min(batch.limit, request.limit)
                return 0
        request.start = batch.start
        expected_rows = min(self._max_rows, int(request.rows + rate * (batch.start - now)))
        miss = batch.start + curve.estimate(max(expected_rows, request.rows)) - request.limit
        if miss <= 0:
            miss = self._delay(index, curve.estimate(request.rows))
        if miss <= 0:
            self.batches.insert(index, request)
        return miss

    def _delay(self, index: int, by: int) -> int:
        """Delays the batches from ``index`` on. If that makes one late, returns by how much and moves nothing."""
        later = self.batches[index:]
        for batch in later:
            miss = batch.start + by + self._curve.estimate(batch.rows) - batch.limit
            if miss > 0:
                return miss
        for batch in later:
            batch.start += by
        return 0

    def _limit_with(self, batch: PlannedBatch, together: int, latest_end: int, now: int, rate: float) -> int:
        """The latest end of a batch if a request joins; an earlier deadline must leave room for later arrivals."""
        if latest_end >= batch.limit:
            return batch.limit
        expected_rows = min(self._max_rows, int(together + rate * (batch.start - now)))
        return latest_end - self._curve.estimate(expected_rows) + self._curve.estimate(together)
