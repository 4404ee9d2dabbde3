"""The queue of a model version: which requests run next, and together. Pure.

``push`` adds a request, ``take`` returns a batch; ``now`` is an argument, and nothing here waits, locks or runs a
model. The order is priority level with ageing, then earliest deadline. A batch is the largest that still meets the
tightest deadline in it. Late work is never started: ``push`` rejects a request that the planned batches
(``batch_plan``) cannot answer within its deadline, and ``take`` drops requests that have become late.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import exp
from typing import TYPE_CHECKING

from isochrone.errors import Cancelled, DeadlineExceeded, IsochroneError, QueueFull
from isochrone.worker.scheduling.batch_plan import NEVER, BatchPlan, Choice, Entry, choose

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.scheduling.latency_curve import LatencyCurve

#: Inline runs in one turn of the loop; then sockets get their turn.
TURN_RUNS = 8

#: Shortest time over which the arrival rate is averaged; four full batches where that is longer.
_RATE_HORIZON_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class LevelPolicy:
    """Triton's ModelQueuePolicy for one priority level."""

    #: 0: no limit.
    max_queue_size: int = 0
    #: Time in the queue after which a request expires; 0: none.
    default_timeout_ns: int = 0
    #: Expired requests run when nothing else waits, instead of being rejected.
    delay_expired: bool = False


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The queue settings of a model's configuration."""

    #: Rows in one batch; 1 when the model does not batch.
    max_rows: int = 1
    #: Preferred batch sizes, sorted; empty: none.
    preferred: tuple[int, ...] = ()
    #: How long the oldest request may wait for others to join its batch.
    delay_ns: int = 0
    #: Number of priority levels; 1 is the highest.
    levels: int = 1
    default_level: int = 1
    #: A request rises one level each time it has waited this long, so that low priority never starves.
    ageing_ns: int = 1_000_000_000
    policies: tuple[LevelPolicy, ...] = field(default=(LevelPolicy(),))
    #: The largest reserve before each deadline for the transport of the answer, beside the time to write it. With 0.3
    #: ms, 99.76 % of the requests admitted at 90 % load were in time (10 ms deadline, caller on the same machine).
    #: Models with short runs reserve less, see ``BatchQueue.margin_ns``.
    margin_ns: int = 800_000


Rejection = tuple["InferRequest", IsochroneError]


class BatchQueue:
    """The queue of one model version."""

    def __init__(self, rules: QueueRules, curve: LatencyCurve, instances: int = 1) -> None:
        self._rules = rules
        self._curve = curve
        self._order = 0
        #: By level (index 0 is unused), earliest deadline first.
        self._levels: list[list[Entry]] = [[] for _ in range(rules.levels + 1)]
        #: By level in order of arrival, for ageing.
        self._arrivals: list[OrderedDict[int, Entry]] = [OrderedDict() for _ in range(rules.levels + 1)]
        #: Expired requests of levels whose policy delays them.
        self._delayed: deque[InferRequest] = deque()
        self.requests = 0
        self.rows = 0
        #: Requests that will not run; the runner fails them.
        self.rejected: list[Rejection] = []
        #: When each instance is expected to be free, 0 if it is; set by ``occupy``.
        self._busy_until: Sequence[int] = (0,) * max(1, instances)
        #: Reserve before each deadline: an answer may wait for the inline runs of the same loop turn, and for answers
        #: that are written before it. Both are measured; see ``reserve_for_answering``.
        self.margin_ns = self._margin(0)
        self._plan = BatchPlan(rules.max_rows, self.margin_ns, curve)
        #: The level down to which the plan is valid; 0: it is not.
        self._planned_level = 0
        #: Shape → number of queued requests, if a delay makes requests wait for others of their shape.
        self._shapes: dict[object, int] | None = {} if rules.delay_ns else None
        #: Arrival rate in rows per ns, rejected requests included.
        self._rate = 0.0
        self._rate_at = 0

    def occupy(self, busy_until: Sequence[int]) -> None:
        """Sets when each instance is expected to be free; at or before ``now``: it is idle."""
        self._busy_until = busy_until
        if self._planned_level and len(busy_until) == 1 and self._plan.batches:
            if busy_until[0]:
                self._plan.move(busy_until[0])
        else:
            self._planned_level = 0

    def reserve_for_answering(self, nanoseconds: int) -> None:
        """Sets the time to write the answers of a batch, which is reserved before each deadline."""
        margin = self._margin(nanoseconds)
        # Only a significant change invalidates the plan.
        if abs(margin - self.margin_ns) > self.margin_ns // 8:
            self.margin_ns = self._plan.margin = margin
            self._planned_level = 0

    def _margin(self, answering_ns: int) -> int:
        run = self._curve.estimate(1)
        longest = self._rules.margin_ns
        return (min(longest, TURN_RUNS * run) if run else longest) + answering_ns

    def push(self, request: InferRequest, now: int) -> None:
        """Queues a request, or raises: the queue is full, or its deadline cannot be met."""
        rules = self._rules
        plan = request.plan
        level = plan.priority
        if not 0 < level <= rules.levels:
            level = rules.default_level
        policy = rules.policies[level - 1]
        if policy.max_queue_size:
            queued = len(self._levels[level]) + (len(self._delayed) if policy.delay_expired else 0)
            if queued >= policy.max_queue_size:
                raise QueueFull(
                    f"Exceeds maximum queue size: model '{plan.model_name}' has {queued} requests queued"
                    f" at priority {level}, max_queue_size is {policy.max_queue_size}"
                ).not_begun()
        deadline = request.deadline
        expires = now + policy.default_timeout_ns if policy.default_timeout_ns else NEVER
        key = deadline if deadline < expires else expires
        self._order += 1
        entry = Entry(key, self._order, request, expires, level)
        if deadline != NEVER:
            self._note_arrival(plan.batch_size, now)
            miss = self._expected_miss(entry, now)
            if miss > 0:
                raise would_miss(request, miss)
        elif rules.levels > 1:
            # It goes behind all deadlines of its level, but before those of lower levels.
            self._planned_level = 0
        request.enqueued = now
        request.dispatched = 0
        insort(self._levels[level], entry)
        self._arrivals[level][entry.order] = entry
        self.requests += 1
        self.rows += plan.batch_size
        if (shapes := self._shapes) is not None:
            shapes[plan.shape_key] = shapes.get(plan.shape_key, 0) + 1

    def waiting(self) -> Iterator[InferRequest]:
        """The requests in the queue, in no order."""
        return chain((entry.request for entries in self._levels for entry in entries), self._delayed)

    def _note_arrival(self, rows: int, now: int) -> None:
        horizon = max(_RATE_HORIZON_NS, 4 * self._curve.estimates[-1])
        self._rate = self._rate * exp((self._rate_at - now) / horizon) + rows / horizon
        self._rate_at = now

    def _expected_miss(self, entry: Entry, now: int) -> int:
        """ns by which a new request would be late, or make others late; 0 or less: it was added to the plan."""
        request = entry.request
        rows = request.plan.batch_size
        alone = self._curve.estimate(rows)
        if not alone:
            # Nothing is measured yet: only a deadline that has passed is certainly missed.
            return now - request.deadline + 1
        latest_end = request.deadline - self.margin_ns
        miss = now + alone - latest_end
        if miss > 0:
            return miss
        plan, level = self._plan, entry.level
        if self._planned_level != level:
            plan.make(self._planned_order(level), now, self._busy_until)
            self._planned_level = level
        miss = plan.add((level, entry.key), rows, latest_end, request.plan.shape_key, now, self._rate)
        return miss

    def _planned_order(self, level: int) -> list[Entry]:
        """Entries with a deadline down to ``level``, in order; lower levels yield to them."""
        entries: list[Entry] = []
        for number in range(1, level + 1):
            queued = self._levels[number]
            if number == level:
                # Requests without a deadline go last and can be delayed.
                entries += queued[: bisect_left(queued, (NEVER,))]
            else:
                entries += queued
        return entries

    def wake_at(self, now: int) -> int | None:
        """When to take a batch: None if the queue is empty; ``now`` or earlier: immediately."""
        if not self.requests:
            return now if self._delayed else None
        rules = self._rules
        shapes = self._shapes
        if shapes is None or len(shapes) > 1 or self.rows >= rules.max_rows:
            # A delay would not make this batch larger: it is full, or a request of another shape follows.
            return now
        if rules.preferred and self._preferred_rows(now):
            return now
        tightest = min(entries[0].key for entries in self._levels if entries)
        at = self._oldest_arrival() + rules.delay_ns
        if tightest != NEVER:
            # Waiting for one more row must not make a request late.
            estimate = self._curve.estimate(min(self.rows + 1, rules.max_rows))
            at = min(at, tightest - self.margin_ns - estimate)
        return at

    def take(self, now: int) -> list[InferRequest]:
        """The next batch; empty when nothing may run."""
        batch: list[InferRequest] = []
        if self.requests:
            choice = self._choose(now)
            for entry in choice.late:
                self._remove(entry)
                self._drop(entry, now)
            batch = [entry.request for entry in choice.taken]
            self.confirm(choice)
        while not batch and self._delayed and not self.requests:
            request = self._delayed.popleft()
            if request.cancelled:
                self.rejected.append((request, Cancelled("the caller has gone")))
            elif request.deadline <= now:
                self.rejected.append((request, _expired(request)))
            else:
                batch.append(request)
        for request in batch:
            request.dispatched = now
        return batch

    @property
    def is_full(self) -> bool:
        """Whether a whole batch waits, so that a further request would not make the next one larger."""
        return self.rows >= self._rules.max_rows

    def peek(self, at: int) -> Choice | None:
        """The batch that ``take`` would return at ``at``; it stays in the queue until ``confirm``. None: no batch.

        In between, nothing may be taken, dropped or cleared.
        """
        if not self.requests:
            return None
        choice = self._choose(at)
        return choice if choice.taken else None

    def confirm(self, choice: Choice) -> None:
        """Removes a batch that has started."""
        for entry in choice.taken:
            self._remove(entry)
        if self._planned_level:
            last = choice.taken[-1] if choice.taken and not choice.late else None
            if last is None or not self._plan.started(choice.rows, (last.level, last.key)):
                self._planned_level = 0

    def _choose(self, at: int) -> Choice:
        rules = self._rules
        maximum = rules.max_rows
        if rules.preferred and (not rules.delay_ns or at - self._oldest_arrival() < rules.delay_ns):
            # As in Triton: a preferred size while the delay lasts, everything after it.
            maximum = self._preferred_rows(at) or maximum
        return choose(self._run_order(at), at, maximum, self.margin_ns, self._curve)

    def drop_late(self, now: int) -> None:
        """Rejects requests that became late while no instance was free, so that no caller waits for a stuck run."""
        for entries in self._levels:
            while entries and entries[0].key <= now:
                entry = entries[0]
                self._remove(entry)
                self._drop(entry, now)
                self._planned_level = 0

    def clear(self) -> list[InferRequest]:
        """Empties the queue and returns its requests: the model is being unloaded."""
        left = [entry.request for entries in self._levels for entry in entries] + list(self._delayed)
        for entries, arrivals in zip(self._levels, self._arrivals, strict=True):
            entries.clear()
            arrivals.clear()
        self._delayed.clear()
        if self._shapes:
            self._shapes.clear()
        self.requests = self.rows = 0
        self._planned_level = 0
        return left

    @property
    def pending(self) -> int:
        return self.requests + len(self._delayed)

    def estimated_wait(self, now: int) -> int:
        """ns until a request pushed now would start, for load reports."""
        maximum = self._rules.max_rows
        wait = max(0, min(self._busy_until) - now)
        return wait + self.rows // len(self._busy_until) // maximum * self._curve.estimate(maximum)

    def estimated_run(self) -> int:
        """ns that the batch of a request pushed now would take; 0: not known."""
        maximum = self._rules.max_rows
        return self._curve.estimate(self.rows // len(self._busy_until) % maximum + 1)

    def _run_order(self, now: int) -> Iterable[Entry]:
        """All entries in the order in which they run: aged entries, then by level and deadline."""
        rules = self._rules
        highest = next(level for level, entries in enumerate(self._levels) if entries)
        # A level is worth a fixed time, so the age of a request compares as its arrival plus level times ageing.
        aged: list[tuple[int, Entry]] = []
        for level in range(highest, rules.levels + 1):
            start = (level - highest + 1) * rules.ageing_ns
            for entry in self._arrivals[level].values():
                if entry.request.enqueued + start > now or len(aged) >= rules.max_rows:
                    break
                aged.append((entry.request.enqueued + level * rules.ageing_ns, entry))
        if not aged:
            if rules.levels == 1:
                return self._levels[1]
            return chain.from_iterable(self._levels)
        aged.sort(key=lambda pair: (pair[0], pair[1].order))
        first = [entry for _, entry in aged]
        orders = {entry.order for entry in first}
        others = (entry for entries in self._levels for entry in entries if entry.order not in orders)
        return chain(first, others)

    def _remove(self, entry: Entry) -> None:
        entries = self._levels[entry.level]
        del entries[0 if entries[0] is entry else bisect_left(entries, entry)]
        del self._arrivals[entry.level][entry.order]
        self.requests -= 1
        plan = entry.request.plan
        self.rows -= plan.batch_size
        if (shapes := self._shapes) is not None:
            shapes[plan.shape_key] -= 1
            if not shapes[plan.shape_key]:
                del shapes[plan.shape_key]

    def _drop(self, entry: Entry, now: int) -> None:
        request = entry.request
        if request.cancelled:
            self.rejected.append((request, Cancelled("the caller has gone")))
        elif self._rules.policies[entry.level - 1].delay_expired and entry.expires <= now < request.deadline:
            self._delayed.append(request)
        else:
            self.rejected.append((request, _expired(request)))

    def _oldest_arrival(self) -> int:
        return min(next(iter(arrivals.values())).request.enqueued for arrivals in self._arrivals if arrivals)

    def _preferred_rows(self, at: int) -> int:
        """Rows of the batch that starts before the delay has passed; 0: none, the requests wait.

        As in Triton: the most requests from the front that add up to a preferred size exactly, or those after which the
        next request would exceed every preferred size.
        """
        preferred = self._rules.preferred
        if self.rows == self.requests:
            # Requests of one row each add up to every size.
            limit = min(self.rows, preferred[-1])
            return max((size for size in preferred if size <= limit), default=0)
        best = rows = 0
        for entry in self._run_order(at):
            size = entry.request.plan.batch_size
            if rows and rows + size > preferred[-1]:
                return best or rows
            rows += size
            if rows in preferred:
                best = rows
        return best or (rows if rows >= preferred[-1] else 0)


def would_miss(request: InferRequest, nanoseconds: int) -> DeadlineExceeded:
    """The error of a request that is rejected on arrival."""
    error = DeadlineExceeded(
        f"Request timeout expired: model '{request.plan.model_name}' would miss the deadline by"
        f" {nanoseconds / 1e6:.2f} ms"
    )
    error.missed_by_ns = nanoseconds
    return error.not_begun()


def _expired(request: InferRequest) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"Request timeout expired: model '{request.plan.model_name}' could not finish in the time left"
    ).not_begun()
