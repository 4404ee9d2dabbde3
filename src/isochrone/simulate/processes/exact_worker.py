"""The exact worker model: the real batch queue, deadlines, plans and measured latency curve; only compute is modelled.

Slower to simulate than the others; use it for deadlines, batching and overload. Like the worker's runner, it pushes or
rejects calls, takes a batch when an instance is idle, updates the queue's view of busy instances, and measures each
run. The runner's own costs (threads, bytes) are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from isochrone.errors import IsochroneError
from isochrone.gateway.replicas import LoadReport
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.simulate.engine import Engine
from isochrone.simulate.processes.calls import ANSWERED, ELSEWHERE, QUEUED, REFUSED, RUNNING, TOO_LATE, Call
from isochrone.simulate.processes.worker import SERVING, Worker
from isochrone.worker.scheduling.batch_queue import BatchQueue, QueueRules
from isochrone.worker.scheduling.latency_curve import LatencyCurve


class QueuedCall(InferRequest):
    """A call as the batch queue takes it."""

    __slots__ = ("call",)

    def __init__(self, call: Call, plan: Plan, now: int) -> None:
        super().__init__(plan, "", {}, now, call.deadline)
        self.call = call


class ExactWorker(Worker):
    """``batch_ns[rows]`` as in the fifo model; ``scatter`` draws each run's time relative to it."""

    def __init__(
        self,
        number: int,
        engine: Engine,
        delay: Callable[[], int],
        batch_ns: Sequence[float],
        rules: QueueRules,
        scatter: Iterator[float],
        instances: int = 1,
        speed: float = 1.0,
    ) -> None:
        super().__init__(number, engine, delay, speed)
        self._batch_ns = batch_ns
        self._rules = rules
        self._scatter = scatter
        self._instances = instances
        self.curve = LatencyCurve(rules.max_rows)
        for rows in self.warmed_sizes():
            # As warm-up does: every size a few times, before the first request.
            for _ in range(4):
                self.curve.observe(rows, int(batch_ns[rows] / speed))
        self._plans: dict[tuple[int, int], Plan] = {}
        self._begin(engine.now)

    def warmed_sizes(self) -> Iterable[int]:
        """Rows of the batches that the curve has measured before the first request."""
        return range(1, self._rules.max_rows + 1)

    def _begin(self, now: int) -> None:
        """Set the state of a process that has just started."""
        self.queue = BatchQueue(self._rules, self.curve, self._instances)
        self._idle = list(range(self._instances))
        self._expected_end = [0] * self._instances
        self._running: dict[int, list[InferRequest]] = {}
        self._requests: dict[int, QueuedCall] = {}
        #: Runs of a stopped process must not end in its successor.
        self._life = now
        self._wake_at = 0
        self.in_flight = 0

    def _plan(self, call: Call) -> Plan:
        plan = self._plans.get((call.rows, call.priority))
        if plan is None:
            plan = Plan("model", "", (), None, priority=call.priority)
            plan.batch_size = call.rows
            plan.shape_key = ()
            self._plans[call.rows, call.priority] = plan
        return plan

    def accept(self, now: int, call: Call) -> None:
        request = QueuedCall(call, self._plan(call), now)
        try:
            self.queue.push(request, now)
        except IsochroneError:
            self.answer(now, call, REFUSED, self.report(now))
            return
        call.place = QUEUED
        self._requests[id(call)] = request
        self.in_flight += 1
        self._pump(now)

    def _pump(self, now: int) -> None:
        queue = self.queue
        while self._idle and queue.pending:
            wake = queue.wake_at(now)
            if wake is not None and wake > now:
                if wake != self._wake_at:
                    self._wake_at = wake
                    self.engine.at(wake, self._woken)
                return
            batch = queue.take(now)
            if queue.rejected:
                self._settle_refused(now)
            if not batch:
                return
            self._start(now, batch)

    def _woken(self, now: int, _: object) -> None:
        if not self.holds(now, self._woken, None):
            self._pump(now)

    def _settle_refused(self, now: int) -> None:
        rejected, self.queue.rejected = self.queue.rejected, []
        for request, _ in rejected:
            call = self._forget(request)
            if not call.over:
                self.answer(now, call, TOO_LATE, self.report(now))

    def _forget(self, request: InferRequest) -> Call:
        assert isinstance(request, QueuedCall)
        call = request.call
        call.place = ELSEWHERE
        del self._requests[id(call)]
        self.in_flight -= 1
        return call

    def _start(self, now: int, batch: list[InferRequest]) -> None:
        instance = self._idle.pop()
        rows, work = 0, 0.0
        for request in batch:
            assert isinstance(request, QueuedCall)
            request.call.place = RUNNING
            rows += request.call.rows
            work += request.call.work * request.call.rows
        took = max(1, int(self._batch_ns[rows] * work / rows / self.speed * next(self._scatter)))
        self.used += took
        self._expected_end[instance] = now + self.curve.estimate(rows)
        self._running[instance] = batch
        self._occupy()
        self.engine.at(now + took, self._finished, (self._life, instance, rows, took))

    def _occupy(self) -> None:
        idle = self._idle
        self.queue.occupy([0 if number in idle else end for number, end in enumerate(self._expected_end)])

    def _finished(self, now: int, run: tuple[int, int, int, int]) -> None:
        life, instance, rows, took = run
        if life != self._life or self.holds(now, self._finished, run):
            return
        self.curve.observe(rows, took)
        self._idle.append(instance)
        self._occupy()
        batch = self._running.pop(instance)
        calls = [self._forget(request) for request in batch]
        self._pump(now)
        report = self.report(now)
        for call in calls:
            if not call.over:
                self.answer(now, call, ANSWERED, report)

    def check(self, now: int) -> None:
        """Reject calls that have become late while all instances were busy; the worker's runner does so, too."""
        if self.state == SERVING and self.queue.requests and not self._idle:
            self.queue.drop_late(now)
            self._settle_refused(now)

    def report(self, now: int) -> LoadReport:
        queue = self.queue
        return LoadReport(self.in_flight, queue.pending, queue.estimated_wait(now), self.curve.estimate(1))

    def cancel(self, now: int, call: Call) -> None:
        if call.place == QUEUED:
            # The queue drops it when its turn comes.
            self._requests[id(call)].cancelled = True

    def drop_all(self, now: int) -> list[Call]:
        left = [request.call for request in self._requests.values()]
        self._begin(now)
        return left
