"""The part of ``BatchRunner`` that starts requests without the queue, which would cost a small request a sixth of the
worker's time.

Only requests that nothing is before, and for which there is nothing to decide; all others are queued.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING

from isochrone.clock import NEVER, now_ns
from isochrone.errors import Cancelled
from isochrone.worker.execution.batches.inline_runner import InlineRunner
from isochrone.worker.execution.instances.batch import Batch

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.execution.runner_context import RunnerContext

#: After this many requests in a row that came when nothing was going on, the next is not expected to have company.
_LONELY_REQUESTS = 4


class DirectRunner(InlineRunner):
    """Starts requests of one model version directly; those that cannot, it queues."""

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self._order = self._answers.order
        self._pump_scheduled = False
        #: Whether a request that finds an idle instance and nothing before it may start without the queue.
        self._starts_at_once = False
        #: The same of an executable that overlaps, if requests come one at a time; and how many in a row did.
        self._launches_at_once = False
        self._lonely = 0
        #: A request that starts without the queue, of a model with batches: it waits for the end of this loop turn,
        #: since others may join it.
        self._first: InferRequest | None = None
        #: Requests that need no decision, in the order in which they came, while no instance is idle. While there are
        #: any, the queue is empty.
        self._line: deque[InferRequest] = deque()
        rules = context.rules
        policy = rules.policies[0]
        self._lines_up = (
            rules.max_rows == 1 and rules.levels == 1 and not policy.max_queue_size and not policy.default_timeout_ns
        )

    @abstractmethod
    def _scheduled_pump(self) -> None:
        """The turn of the loop ends: starts what may start."""

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._scheduled_pump)

    def _allow_direct_starts(self) -> None:
        """Of warm instances that need no resources."""
        if not self._rules.delay_ns and self._order is None:
            self._starts_at_once = self.instances[0].executable.begins_on_loop
            self._launches_at_once = all(instance.executable.overlaps for instance in self.instances)

    def _started_directly(self, request: InferRequest) -> bool:
        return (self._starts_at_once and self._started_at_once(request)) or (
            self._launches_at_once and self._launched_at_once(request)
        )

    @property
    def pending(self) -> int:
        return super().pending + (self._first is not None) + len(self._line)

    def estimated_wait(self, now: int) -> int:
        line = len(self._line) * self.curve.estimate(1) // max(1, len(self.instances))
        return super().estimated_wait(now) + line

    def _started_at_once(self, request: InferRequest) -> bool:
        """Starts a request that nothing is before, now or at the end of this turn; False: it has to queue."""
        if self._first is not None:
            # Two requests of one turn: the queue makes a batch of them.
            self._enqueue_first()
            return False
        if self.queue.pending:
            return False
        now = now_ns()
        if not self._idle:
            return self._lined_up(request, now)
        if not self._is_in_time(request, now):
            return False
        request.enqueued = now
        if self._rules.max_rows == 1:
            self._start_alone(request, now)
            return True
        self._first = request
        self._schedule_pump()
        return True

    def _launched_at_once(self, request: InferRequest) -> bool:
        """Launches a request of an executable that overlaps, if nothing is before it; False: it has to queue.

        A launch is final: what else comes in this turn of the loop could not join it. So only a request that is not
        expected to have company is launched before the turn has ended. The first one of a burst may be wrong about
        that; those behind it are queued, and so is the first of the next burst.
        """
        if self.queue.pending or len(self._idle) < len(self.instances):
            self._lonely = 0
            return False
        self._lonely += 1
        if self._lonely <= _LONELY_REQUESTS and self._rules.max_rows > 1:
            return False
        now = now_ns()
        if not self._idle or not self._is_in_time(request, now):
            return False
        request.enqueued = now
        self._start_alone(request, now)
        return True

    def _is_in_time(self, request: InferRequest, now: int) -> bool:
        """Whether a request that starts now meets its deadline; if not, the queue rejects it."""
        if request.deadline == NEVER:
            return True
        expected = self.curve.estimate(request.plan.batch_size)
        return 0 < expected <= request.deadline - now - self.queue.margin_ns

    def _lined_up(self, request: InferRequest, now: int) -> bool:
        if self._lines_up and request.deadline == NEVER:
            request.enqueued = now
            self._line.append(request)
            return True
        # There is something to decide: the queue does, for all.
        while self._line:
            self._enqueue_or_fail(self._line.popleft())
        return False

    def _serve_line(self) -> None:
        while self._line and self._idle:
            request = self._line.popleft()
            if request.cancelled:
                self._fail(request, Cancelled("the caller has gone"))
            else:
                self._start_alone(request, now_ns())

    def _start_first(self) -> None:
        """The turn of ``_first`` is over, and no other request came."""
        request = self._first
        if request is None:
            return
        if not self._idle or self.queue.pending or request.cancelled or self._rejection is not None:
            self._enqueue_first()
            return
        self._first = None
        self._start_alone(request, now_ns())

    def _start_alone(self, request: InferRequest, now: int) -> None:
        rows = request.plan.batch_size
        request.dispatched = now
        self._idle.pop().start(Batch([request], rows), self.curve.estimate(rows))
        self._busy_changed = True

    def _enqueue_first(self) -> None:
        request, self._first = self._first, None
        if request is not None:
            self._enqueue_or_fail(request)

    def _enqueue_or_fail(self, request: InferRequest) -> None:
        error = self._rejection or self._enqueued(request)
        if error is not None:
            self._finish_failed(request, error)

    def _take_unqueued(self) -> list[InferRequest]:
        """The requests that wait without the queue; then there are none."""
        taken = list(self._line) if self._first is None else [self._first]
        self._first = None
        self._line.clear()
        return taken
