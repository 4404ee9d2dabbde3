"""Which queued requests leave together, and what that means for one more: batches planned ahead, pure.

``choose`` makes one batch out of requests in the order they go. ``BatchPlan`` strings such batches together, instance
by instance, to tell ``BatchQueue.push`` whether a newcomer would be in time. Both decide alike, so a request that was
admitted by the plan is in time if the curve is right and nothing overtakes it.

Why the plan looks at the arrival rate. A batch must meet the deadline of its oldest member, so the member that arrived
first decides how large the batch may be. Under overload, somebody who arrives just after a batch has started can still
be answered, but only by a batch so small that it wastes the instance; the next one then starts late for its own head,
and so on, down to batches of one (34 % of capacity at twice the load that can be served). So a request may *begin* a
planned batch only if everybody expected to join it until it starts fits behind that request's deadline too. Those who
come too early in the cycle are refused at once, and the later ones fill a large batch. At low load the expected company
is small and nobody is refused. Large MLP (1.7 ms alone, 7.2 ms for 16), 10 ms deadline, twice the capacity: answers
in time are 89 % of capacity, where 92 % is the most that a cycle of equal batches can reach.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.scheduling.latency_curve import LatencyCurve


#: As in ``isochrone.clock``, which decisions do not import.
NEVER = 1 << 62


class Entry(NamedTuple):
    """One queued request. Compares by the first two fields, which are never equal in two entries."""

    #: The earlier of its deadline and the end of its time in the queue.
    key: int
    order: int
    request: InferRequest
    #: The queue policy's timeout: it must have started by then. NEVER: no such policy.
    expires: int
    level: int


class Choice:
    """One batch out of a queue, and who was looked at for it: a prefix of the entries, in three parts."""

    __slots__ = ("late", "limit", "passed", "rows", "taken")

    def __init__(self) -> None:
        self.taken: list[Entry] = []
        #: Cannot be in time even alone and at once, have expired, or were cancelled.
        self.late: list[Entry] = []
        #: Left for a later batch: of another shape, or one too many.
        self.passed: list[Entry] = []
        self.rows = 0
        #: The end of compute that suits everybody taken.
        self.limit = NEVER


#: Entries of another shape looked past while filling one batch.
_MAX_PASSED = 64
#: Entries a plan looks at; those beyond are taken to leave in full batches.
_PLANNED_ENTRIES = 128


def choose(entries: Iterable[Entry], at: int, maximum: int, margin: int, curve: LatencyCurve) -> Choice:
    """The batch that would start at ``at``: the first entry that can be in time, and what fits in with it."""
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
            # Without a measurement only a deadline that has passed is surely missed.
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
                # By its own deadline alone, behind a higher class: it will be late, and need not keep others out.
                continue
            # In order: nobody of the same shape overtakes one who does not fit.
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
        #: (level, key) of the last in it: who sorts before that goes in this batch or an earlier one.
        self.last = last


def _last(batch: PlannedBatch) -> tuple[int, int]:
    return batch.last


class BatchPlan:
    """The batches a queue is expected to leave in. Made anew when a batch leaves, mended when a request comes."""

    __slots__ = ("_curve", "_free", "_max_rows", "batches", "late", "margin")

    def __init__(self, max_rows: int, margin: int, curve: LatencyCurve) -> None:
        self._max_rows = max_rows
        #: Kept free before each deadline.
        self.margin = margin
        self._curve = curve
        #: When each instance is free, the last batch not counted; a heap whose first is where the last batch runs.
        self._free: list[int] = [0]
        self.batches: list[PlannedBatch] = []
        #: Requests that will be late whatever happens.
        self.late = 0

    def make(self, entries: Sequence[Entry], now: int, busy_until: Sequence[int]) -> None:
        """Plans from the beginning."""
        free = self._free = [end if end > now else now for end in busy_until]
        heapify(free)
        curve, maximum = self._curve, self._max_rows
        self.batches = []
        self.late = 0
        left: Sequence[Entry] = entries[:_PLANNED_ENTRIES]
        while left:
            start = self._next_start()
            choice = choose(left, start, maximum, self.margin, curve)
            self.late += len(choice.late)
            looked_at = len(choice.taken) + len(choice.late) + len(choice.passed)
            if choice.taken:
                last = choice.taken[-1]
                shape = last.request.plan.shape_key
                self._append(PlannedBatch(start, choice.rows, choice.limit, shape, (last.level, last.key)))
            left = [*choice.passed, *left[looked_at:]]
        beyond = sum(entry.request.plan.batch_size for entry in entries[_PLANNED_ENTRIES:])
        while beyond > 0:
            rows = min(maximum, beyond) if beyond < 4 * maximum else beyond
            last = entries[-1]
            self._append(PlannedBatch(self._next_start(), rows, NEVER, None, (last.level, last.key)))
            beyond -= rows

    def started(self, rows: int, last: tuple[int, int]) -> bool:
        """The first batch has left as planned, on the one instance there is; False: the plan holds no longer."""
        if len(self._free) > 1 or len(self.batches) < 2:
            return False
        first = self.batches[0]
        if first.rows != rows or first.last != last:
            return False
        del self.batches[0]
        return True

    def move(self, free: int) -> None:
        """The one instance there is will be free at another time than was planned."""
        by = free - self.batches[0].start
        for batch in self.batches:
            batch.start += by

    def _next_start(self) -> int:
        """When the earliest instance is free, the last batch planned included."""
        if not self.batches:
            return self._free[0]
        last, free = self.batches[-1], self._free
        end = last.start + self._curve.estimate(last.rows)
        # A heap's second smallest is one of the two below its first.
        return min(end, *free[1:3]) if len(free) > 1 else end

    def _append(self, batch: PlannedBatch) -> None:
        if self.batches:
            last = self.batches[-1]
            heapreplace(self._free, last.start + self._curve.estimate(last.rows))
        self.batches.append(batch)

    def _catch_up(self, now: int) -> None:
        """Nothing starts in the past: an instance that is late makes all of the plan late."""
        lag = now - self.batches[0].start
        if lag > 0:
            for batch in self.batches:
                batch.start += lag

    def add(self, position: tuple[int, int], rows: int, latest_end: int, shape: object, now: int, rate: float) -> int:
        """Plans one more, at its place in the order. By how much it would be late; 0 or less: it is in the plan now.

        ``rate`` is what is asked for, in rows per ns.
        """
        curve = self._curve
        if self.batches:
            self._catch_up(now)
            batch = self.batches[-1]
            if position < batch.last:
                index = bisect_right(self.batches, position, key=_last)
                newcomer = PlannedBatch(now, rows, latest_end, shape, position)
                return self._insert(index, newcomer, now, rate)
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
        company = rows + rate * (start - now)
        expected = curve.estimate(int(company) if company < self._max_rows else self._max_rows)
        miss = start + expected - latest_end
        if miss <= 0:
            self._append(PlannedBatch(start, rows, latest_end, shape, position))
        return miss

    def _insert(self, index: int, newcomer: PlannedBatch, now: int, rate: float) -> int:
        """Puts one more into the middle, if nobody becomes late by it: into the batch at ``index``, else before it.

        Before it, in a batch of its own, is the cautious view; the real batches will not be worse.
        """
        curve = self._curve
        batch = self.batches[index]
        together = batch.rows + newcomer.rows
        if batch.shape == newcomer.shape and together <= self._max_rows:
            limit = self._limit_with(batch, together, newcomer.limit, now, rate)
            longer = curve.estimate(together) - curve.estimate(batch.rows)
            if batch.start + curve.estimate(together) <= limit and self._delay(index + 1, longer) <= 0:
                batch.rows, batch.limit = together, min(batch.limit, newcomer.limit)
                return 0
        newcomer.start = batch.start
        company = min(self._max_rows, int(newcomer.rows + rate * (batch.start - now)))
        miss = batch.start + curve.estimate(max(company, newcomer.rows)) - newcomer.limit
        if miss <= 0:
            miss = self._delay(index, curve.estimate(newcomer.rows))
        if miss <= 0:
            self.batches.insert(index, newcomer)
        return miss

    def _delay(self, index: int, by: int) -> int:
        """Moves the batches from ``index`` on, unless that makes one late: then by how much, and nothing is moved."""
        later = self.batches[index:]
        for batch in later:
            miss = batch.start + by + self._curve.estimate(batch.rows) - batch.limit
            if miss > 0:
                return miss
        for batch in later:
            batch.start += by
        return 0

    def _limit_with(self, batch: PlannedBatch, together: int, latest_end: int, now: int, rate: float) -> int:
        """When a batch must end if one more joins; who makes that earlier needs room for all who are still to come."""
        if latest_end >= batch.limit:
            return batch.limit
        company = min(self._max_rows, int(together + rate * (batch.start - now)))
        return latest_end - self._curve.estimate(company) + self._curve.estimate(together)
