"""Which requests run next, and together: the worker's scheduling decision, pure.

Requests go in with ``push``, batches come out of ``take``; ``now`` is an argument, nothing here waits, locks or runs.
Order: priority class with ageing, then earliest deadline. A batch is the largest that still meets the tightest deadline
in it. Late work is never started: what cannot be met is refused at ``push`` or dropped at ``take``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from isochrone.errors import Cancelled, DeadlineExceeded, IsochroneError, QueueFull

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.curve import LatencyCurve

NEVER = 1 << 62
#: Requests of another shape looked past while filling one batch.
_MAX_SET_ASIDE = 64


@dataclass(frozen=True, slots=True)
class LevelPolicy:
    """Triton's ModelQueuePolicy for one priority level."""

    #: 0: no limit.
    max_queue_size: int = 0
    #: Time in the queue after which a request expires; 0: none.
    default_timeout_ns: int = 0
    #: Expired requests run when nothing else waits, instead of being refused.
    delay_expired: bool = False


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What a model's configuration says of its queue."""

    #: Rows in one batch; 1 when the model does not batch.
    max_rows: int = 1
    #: Sorted; empty: any size is as good as another.
    preferred: tuple[int, ...] = ()
    #: How long the oldest request may wait for company.
    delay_ns: int = 0
    #: Priority classes, 1 the highest.
    levels: int = 1
    default_level: int = 1
    #: A request gains one class for every such time it waits, so that low priority never starves.
    ageing_ns: int = 1_000_000_000
    policies: tuple[LevelPolicy, ...] = field(default=(LevelPolicy(),))
    #: Kept free before each deadline for the way back to the caller.
    margin_ns: int = 300_000


Refusal = tuple["InferRequest", IsochroneError]


class BatchQueue:
    """The queue of one model version."""

    def __init__(self, rules: QueueRules, curve: LatencyCurve, instances: int = 1) -> None:
        self._rules = rules
        self._curve = curve
        self._instances = max(1, instances)
        self._sequence = 0
        #: Per level: (deadline, order, request).
        self._heaps: list[list[tuple[int, int, InferRequest]]] = [[] for _ in range(rules.levels + 1)]
        #: Per level, arrival order, for ageing; entries already taken are skipped. Kept only with several levels.
        self._arrivals: list[deque[InferRequest]] = [deque() for _ in range(rules.levels + 1)]
        #: Expired requests of levels whose policy delays them.
        self._delayed: deque[InferRequest] = deque()
        self.requests = 0
        self.rows = 0
        #: Requests that will not run, for the shell to fail.
        self.refused: list[Refusal] = []
        #: When the earliest instance is expected to be free; the shell keeps it.
        self.free_at = 0

    # In.

    def push(self, request: InferRequest, now: int) -> None:
        """Queues a request, or raises: the queue is full, or its deadline cannot be met."""
        rules = self._rules
        plan = request.plan
        level = plan.priority
        if not 0 < level <= rules.levels:
            level = rules.default_level
        policy = rules.policies[level - 1]
        heap = self._heaps[level]
        if policy.max_queue_size and len(heap) >= policy.max_queue_size:
            raise QueueFull(
                f"Exceeds maximum queue size: model '{plan.model_name}' has {len(heap)} requests queued"
                f" at priority {level}, max_queue_size is {policy.max_queue_size}"
            )
        deadline = request.deadline
        if policy.default_timeout_ns and now + policy.default_timeout_ns < deadline:
            deadline = now + policy.default_timeout_ns
            if not policy.delay_expired:
                request.deadline = deadline
        if request.deadline != NEVER:
            miss = self.expected_miss(plan.batch_size, request.deadline, level, now)
            if miss > 0:
                raise DeadlineExceeded(
                    f"Request timeout expired: model '{plan.model_name}' would miss the deadline by {miss / 1e6:.2f} ms"
                )
        request.enqueued = now
        self._sequence += 1
        heappush(heap, (deadline, self._sequence, request))
        if rules.levels > 1:
            self._arrivals[level].append(request)
        self.requests += 1
        self.rows += plan.batch_size

    def expected_miss(self, rows: int, deadline: int, level: int, now: int) -> int:
        """By how much a request pushed now would miss its deadline; 0 or less: it would not."""
        curve = self._curve
        limit = deadline - self._rules.margin_ns
        own = curve.estimate(rows)
        time = max(now, self.free_at)
        if not own:
            return now - deadline
        if time + own > limit:
            return time + own - limit
        # Those that go first: higher classes, and earlier deadlines of the same one.
        ahead = 0
        tightest = deadline
        for index in range(1, level + 1):
            for other, _, queued in self._heaps[index]:
                if index < level or other <= deadline:
                    ahead += queued.plan.batch_size
                    if other < tightest:
                        tightest = other
        left = -(-ahead // self._instances) + rows
        maximum = self._rules.max_rows
        while True:
            # The batch at the head is cut to what its tightest deadline allows; later ones to what ours does.
            size = max(1, min(left, curve.largest_within(tightest - self._rules.margin_ns - time, maximum)))
            time += curve.estimate(size)
            left -= size
            tightest = deadline
            if left <= 0 or time > limit:
                break
        if left > 0:
            time += curve.estimate(min(left, maximum))
        return time - limit

    # Out.

    def wake_at(self, now: int) -> int | None:
        """When a batch should be taken: None when the queue is empty, ``now`` or earlier to take one at once."""
        if not self.requests:
            return None
        rules = self._rules
        if not rules.delay_ns or self.rows >= rules.max_rows or self._delayed:
            return now
        if rules.preferred and self.rows >= rules.preferred[0] and self._largest_preferred() >= rules.preferred[0]:
            return now
        oldest = tightest = NEVER
        for heap in self._heaps:
            for deadline, _, request in heap:
                if request.enqueued < oldest:
                    oldest = request.enqueued
                if deadline < tightest:
                    tightest = deadline
        # Waiting for one more row must not cost anybody their deadline.
        latest_start = tightest - rules.margin_ns - self._curve.estimate(min(self.rows + 1, rules.max_rows))
        return min(oldest + rules.delay_ns, latest_start)

    def take(self, now: int, *, limit: int = 0) -> list[InferRequest]:
        """The next batch; empty when nothing may run. ``limit`` cuts the rows below the model's own maximum."""
        rules = self._rules
        maximum = min(limit, rules.max_rows) if limit else rules.max_rows
        if rules.preferred and rules.delay_ns and self.rows < maximum:
            preferred = self._largest_preferred()
            if preferred:
                maximum = preferred
        batch: list[InferRequest] = []
        rows = 0
        budget = NEVER
        shape: object = None
        aside: list[tuple[int, tuple[int, int, InferRequest]]] = []
        while self.requests and rows < maximum and len(aside) < _MAX_SET_ASIDE:
            level = self._next_level() if rules.levels > 1 else 1
            heap = self._heaps[level]
            if not heap:
                break
            entry = heappop(heap)
            deadline, _, request = entry
            size = request.plan.batch_size
            self.requests -= 1
            self.rows -= size
            if request.cancelled:
                self.refused.append((request, Cancelled("the caller has gone")))
                continue
            if deadline != NEVER:
                alone = self._curve.estimate(size)
                if deadline <= now or (alone and now + alone + rules.margin_ns > deadline):
                    self._expire(request, level, deadline - now - alone)
                    continue
            if batch:
                estimate = self._curve.estimate(rows + size)
                fits = rows + size <= maximum and (
                    not estimate or now + estimate + rules.margin_ns <= min(budget, deadline)
                )
                if not fits or request.plan.shape_key != shape:
                    aside.append((level, entry))
                    if not fits:
                        break
                    continue
            else:
                shape = request.plan.shape_key
            batch.append(request)
            rows += size
            if deadline < budget:
                budget = deadline
        for level, entry in aside:
            heappush(self._heaps[level], entry)
            self.requests += 1
            self.rows += entry[2].plan.batch_size
        if not batch and self._delayed and not self.requests:
            batch.append(self._delayed.popleft())
        for request in batch:
            request.dispatched = now
        return batch

    def clear(self) -> list[InferRequest]:
        """Forgets everything and returns it: the model is going away."""
        left = [request for heap in self._heaps for _, _, request in heap] + list(self._delayed)
        for heap in self._heaps:
            heap.clear()
        for arrivals in self._arrivals:
            arrivals.clear()
        self._delayed.clear()
        self.requests = self.rows = 0
        return left

    @property
    def pending(self) -> int:
        return self.requests + len(self._delayed)

    def estimated_wait(self, now: int) -> int:
        """ns until a request pushed now would start: for load reports."""
        maximum = self._rules.max_rows
        wait = max(0, self.free_at - now)
        whole, rest = divmod(-(-self.rows // self._instances), maximum)
        return wait + whole * self._curve.estimate(maximum) + (self._curve.estimate(rest) if rest else 0)

    def _expire(self, request: InferRequest, level: int, slack: int) -> None:
        if self._rules.policies[level - 1].delay_expired and slack <= 0 and request.deadline == NEVER:
            self._delayed.append(request)
            return
        plan = request.plan
        self.refused.append(
            (
                request,
                DeadlineExceeded(
                    f"Request timeout expired: model '{plan.model_name}' could not finish in the time left"
                ),
            )
        )

    def _largest_preferred(self) -> int:
        return max((size for size in self._rules.preferred if size <= self.rows), default=0)

    def _next_level(self) -> int:
        """The class whose oldest request, aged by its wait, comes first.

        A class is worth a fixed head start, so "aged" is a fixed number per request: arrival plus class times ageing.
        """
        best, best_key = 1, NEVER
        for level in range(1, self._rules.levels + 1):
            if not self._heaps[level]:
                self._arrivals[level].clear()
                continue
            arrivals = self._arrivals[level]
            while arrivals and arrivals[0].dispatched:
                arrivals.popleft()
            oldest = arrivals[0].enqueued if arrivals else self._heaps[level][0][2].enqueued
            key = oldest + level * self._rules.ageing_ns
            if key < best_key:
                best, best_key = level, key
        return best
