"""The runner of ordinary models: it queues requests, takes batches from the queue and runs them on instances.

Runs on the loop's thread; instances compute on threads of their own. Short batches run inline, on the loop's thread
(``inline``): a thread would cost 22 µs and a context switch. ``gathering`` decides whether requests wait for others to
share a batch with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from isochrone.clock import MICROSECOND, NEVER, now_ns
from isochrone.errors import Cancelled, IsochroneError
from isochrone.worker.execution.batch import Batch, answer, as_model_error
from isochrone.worker.execution.compute_stage import STAGE_NS, ComputeStage
from isochrone.worker.execution.inline import INLINE_NS, OVERRUN_NS, InlineRuns
from isochrone.worker.execution.instance import Instance
from isochrone.worker.execution.lookahead import LookAhead
from isochrone.worker.execution.queued_runner import QueuedRunner
from isochrone.worker.execution.replacement import MakeInstance
from isochrone.worker.execution.resource_gate import ResourceGate
from isochrone.worker.execution.watchdog import InlineHang, InlineWatchdog
from isochrone.worker.scheduling.alarm import Alarm
from isochrone.worker.scheduling.answer_order import AnswerOrder
from isochrone.worker.scheduling.batch_queue import TURN_RUNS, QueueRules, would_miss
from isochrone.worker.scheduling.gathering import Gathering
from isochrone.worker.scheduling.latency_curve import LatencyCurve, RunningTime

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.statistics import ModelStatistics

#: A request that arrives this soon after an answer was there before it: no caller answers an answer in that time.
_BURST_NS = 25 * MICROSECOND
#: After this many requests in a row that came when nothing was going on, requests come one at a time.
_QUIET_REQUESTS = 4


class BatchRunner(QueuedRunner):
    """Runs one version of a stateless model that gives each request one answer."""

    def __init__(
        self,
        name: str,
        rules: QueueRules,
        curve: LatencyCurve,
        statistics: ModelStatistics,
        watchdog: InlineWatchdog,
        stage: ComputeStage,
        request_ended: Callable[[], None],
        *,
        preserve_ordering: bool = False,
        execution_timeout_ns: int = 0,
        gate: ResourceGate | None = None,
    ) -> None:
        super().__init__(name, rules, curve, statistics, request_ended, execution_timeout_ns)
        self._watchdog = watchdog
        self._stage = stage
        #: Requests of one turn share a batch without a queue: there is nothing to wait for, to sort or to size.
        self._batches_in_stage = rules.max_rows > 1 and rules.levels == 1 and not (rules.delay_ns or rules.preferred)
        #: Where instances acquire resources before they run; None: they need none.
        self._gate = gate
        self._pump_scheduled = False
        self._alarm: Alarm | None = None
        self._ahead: LookAhead | None = None
        #: Time of the loop's thread that went into queueing requests which have not run yet.
        self._queueing = 0
        self._inline = InlineRuns(name, self._loop, curve.max_rows, watchdog)
        self._gathering = Gathering()
        #: Requests that came together the last time.
        self._usual_batch = 2
        #: Time from the end of a batch to the last of its answers.
        self._answering = RunningTime()
        self._runs = 0
        #: When the last answer was written.
        self._last_answer = 0
        #: Consecutive requests that came when nothing was going on.
        self._quiet = 0
        #: Requests that run in the stage of this turn.
        self._staged = 0
        #: Rejections and runs, in all and at the last call of ``check_stuck``.
        self._rejections = self._rejections_seen = self._runs_seen = 0
        self._order = AnswerOrder() if preserve_ordering else None

    def start(self, instances: list[Instance], replacement: MakeInstance) -> None:
        super().start(instances, replacement)
        if self._rules.delay_ns:
            self._alarm = Alarm(self._loop, self._pump)
        if self._gate is not None:
            # Every run must acquire its resources first: no inline runs, and no look-ahead.
            for index, instance in enumerate(instances):
                self._gate.add(instance, self._pump, index)
            return
        executable = instances[0].executable
        if executable.inline_allowed:
            self._inline.begin(self.curve, only_computes=executable.only_computes)
        self._ahead = LookAhead(self.queue, self.curve, self.instances, self._loop)

    def submit(self, request: InferRequest) -> None:
        """Queues or runs a request, or raises."""
        if self._rejection is not None:
            raise self._rejection
        if self._order is not None:
            self._order.join(request)
        elif (
            (limit := self._inline.limit_ns) and not self.queue.requests and self._idle and self._may_be_staged(request)
        ):
            # Nothing to wait for: it runs in this turn, together with others of the turn if that pays.
            rows = request.plan.batch_size
            expected = self._inline.typical[rows] or self.curve.estimate(rows)
            if 0 < expected <= limit or self._delays_nobody(request, expected):
                self._staged += 1
                self._stage.add(self, request, expected)
                return
        else:
            self._quiet = 0
        self._enqueue(request)

    def _enqueue(self, request: InferRequest) -> None:
        """Queues a request, or raises."""
        now = now_ns()
        try:
            self.queue.push(request, now)
        except IsochroneError:
            self._rejections += 1
            if self._order is not None:
                self._order.leave(request)
            raise
        self._queueing += now_ns() - now
        if not self._pump_scheduled:
            self._pump_scheduled = True
            # At the end of this loop turn: requests that arrive in the same turn can share a batch.
            self._loop.call_soon(self._scheduled_pump)

    def _may_be_staged(self, request: InferRequest) -> bool:
        """Whether a request may run in the stage of its turn. To wait for others or to be sorted it must queue."""
        rules = self._rules
        if rules.max_rows == 1 or self._batches_in_stage:
            return True
        return not rules.delay_ns and not self._gathering.pays(self._usual_batch, request.arrived)

    def _delays_nobody(self, request: InferRequest, expected: int) -> bool:
        """Whether a longer run on the loop's thread would delay nobody.

        Either requests come one at a time, or only this model is requested, it has one instance, for which the others
        would wait anyway, and they need no decision: the queue must see a request with a deadline when it comes.
        """
        if not 0 < expected <= self._inline.long_ns:
            return False
        if self._watchdog.is_shared(request.arrived):
            self._quiet = 0
            return False
        if expected <= self._inline.concurrent_ns and self._needs_no_decision(request):
            # Otherwise the request is queued, and sockets get their turn.
            return self._stage.expected_ns < STAGE_NS
        if self._staged or request.arrived - self._last_answer < _BURST_NS:
            self._quiet = 0
            return False
        self._quiet += 1
        return self._quiet > _QUIET_REQUESTS

    def _inline_limit(self, first: InferRequest) -> int:
        """The longest batch that may run on the loop's thread; ``first``: the request that runs first in it."""
        limit = self._inline.limit_ns
        if limit and self._needs_no_decision(first) and not self._watchdog.is_shared(first.arrived):
            return max(limit, self._inline.concurrent_ns)
        return limit

    def _needs_no_decision(self, request: InferRequest) -> bool:
        """Whether there is nothing to choose for it: neither when it runs nor where."""
        return request.deadline == NEVER and self._rules.levels == 1 and len(self.instances) == 1

    def _scheduled_pump(self) -> None:
        self._pump_scheduled = False
        self._pump()
        if self._ahead is not None and not self._idle:
            self._ahead.refresh()

    def _pump(self) -> None:
        queue = self.queue
        if self._ahead is not None and self._idle:
            self._ahead.withdraw()
        inline, begun = 0, now_ns()
        while self._idle and queue.pending:
            now = now_ns()
            wake = queue.wake_at(now)
            if wake is not None and wake > now:
                if self._alarm is not None:
                    self._alarm.set(wake)
                break
            if self._gate is not None and not self._gate.enter(self._idle):
                break
            requests = queue.take(now)
            if queue.rejected:
                self._fail_rejected()
            if not requests:
                if self._gate is not None:
                    self._gate.exit(self._idle[-1])
                break
            rows = 0
            for request in requests:
                rows += request.plan.batch_size
            expected = self.curve.estimate(rows)
            if 0 < (self._inline.typical[rows] or expected) <= self._inline_limit(requests[0]):
                self._run_inline(Batch(requests, rows), now)
                inline += 1
                if (inline >= TURN_RUNS or now_ns() - begun > STAGE_NS) and queue.pending:
                    if not self._pump_scheduled:
                        self._pump_scheduled = True
                        self._loop.call_soon(self._scheduled_pump)
                    break
            else:
                instance = self._idle.pop()
                instance.start(Batch(requests, rows), expected)
                self._update_busy()
                self._queueing = 0
        if queue.rejected:
            self._fail_rejected()

    # Runs and answers.

    def compute(self, requests: list[InferRequest], until: int) -> tuple[int, list[Tensors | None] | Batch]:
        """Runs requests of one turn inline, as a batch or one after the other: how many, and their results."""
        if len(requests) > 1 and self._rules.max_rows > 1:
            self._usual_batch = min(len(requests), self._rules.max_rows)
            if self._batches_in_stage and self._gathering.pays(self._usual_batch, requests[0].arrived):
                found = self._compute_together(requests)
                if found is not None:
                    return found
        results: list[Tensors | None] = []
        for request in requests:
            results.append(self._compute(request))
            if request.compute_end > until:
                break
        self._staged -= len(results)
        return len(results), results

    def _compute_together(self, requests: list[InferRequest]) -> tuple[int, list[Tensors | None] | Batch] | None:
        """Runs the first requests as a batch, or queues them all for a batch on the thread; None: no batch can be."""
        if not self._idle or self._rejection is not None:
            return None
        first = requests[0]
        shape, rows, count, tightest = first.plan.shape_key, 0, 0, NEVER
        for request in requests:
            plan = request.plan
            if plan.shape_key != shape or rows + plan.batch_size > self._rules.max_rows or request.cancelled:
                break
            rows += plan.batch_size
            count += 1
            tightest = min(tightest, request.deadline)
        if count < 2:
            return None
        taken = now_ns()
        if tightest != NEVER and taken + self.curve.estimate(rows) + self.queue.margin_ns > tightest:
            return None
        if not 0 < (self._inline.typical[rows] or self.curve.estimate(rows)) <= self._inline_limit(first):
            self._staged -= len(requests)
            for request in requests:
                self._enqueue_or_fail(request)
            return len(requests), []
        batch = Batch(requests[:count], rows)
        for request in batch.requests:
            request.dispatched = taken
        self._staged -= count
        self._run_batch(batch)
        return count, batch

    def _enqueue_or_fail(self, request: InferRequest) -> None:
        try:
            self._enqueue(request)
        except IsochroneError as error:
            self._fail(request, error)

    def _compute(self, request: InferRequest) -> Tensors | None:
        """Runs one request inline: like a batch, without a ``Batch``. None: it needs no answer now."""
        # Something may have changed since it was put into the stage.
        if self._rejection is not None or request.cancelled:
            self._fail(request, self._rejection or Cancelled("the caller has gone"))
            return None
        if not self._idle:
            self._enqueue_or_fail(request)
            return None
        if request.deadline != NEVER:
            miss = now_ns() + self.curve.estimate(request.plan.batch_size) + self.queue.margin_ns - request.deadline
            if miss > 0:
                self._rejections += 1
                self._fail(request, would_miss(request, miss))
                return None
        watchdog = self._watchdog
        request.dispatched = request.enqueued
        watchdog.since = started = now_ns()
        try:
            outputs = self._idle[-1].executable.execute(request.inputs, request.plan.outputs)
        except BaseException as error:
            watchdog.since = 0
            request.compute_end = now_ns()
            self._single_failed(request, error)
            return None
        watchdog.since = 0
        request.compute_start = request.infer_start = started
        request.infer_end = request.compute_end = now_ns()
        return outputs

    def finish(self, requests: list[InferRequest], results: list[Tensors | None] | Batch) -> None:
        """Answers requests that ``compute`` has run."""
        if isinstance(results, Batch):
            begun = now_ns()
            self._settle_inline(results)
            spent = results.compute_end - results.compute_start + self._last_answer - begun
            self._gathering.ran_together(len(requests), spent)
            return
        for request, outputs in zip(requests, results, strict=False):
            if outputs is not None:
                self._finish(request, outputs)

    def _finish(self, request: InferRequest, outputs: Tensors) -> None:
        begun = now_ns()
        ended = request.compute_end
        elapsed = ended - request.compute_start
        rows = request.plan.batch_size
        self._statistics.record_single(request, ended, rows)
        self._request_ended()
        answer(request, outputs)
        self._last_answer = now_ns()
        # One run in eight is enough for what is learned from it.
        self._runs += 1
        if not self._runs & 7 or self._inline.retrying:
            self._inline.observe(rows, elapsed, ended)
            self.curve.observe(rows, elapsed)
            if self._rules.max_rows > 1:
                self._gathering.ran_alone(elapsed + self._last_answer - begun)
        if elapsed > OVERRUN_NS:
            self._inline.overran(rows, elapsed, ended, self._runs)

    def _single_failed(self, request: InferRequest, error: BaseException) -> None:
        if isinstance(error, InlineHang) or isinstance(error.__cause__, InlineHang):
            self._inline.forbid()
        self._fail(request, as_model_error(error, request))

    def _run_inline(self, batch: Batch, taken: int) -> None:
        """``taken``: when it was taken from the queue."""
        self._run_batch(batch)
        self._settle_inline(batch)
        if len(batch.requests) > 1:
            self._usual_batch = len(batch.requests)
            spent = self._last_answer - taken + self._queueing
            self._gathering.ran_together(len(batch.requests), spent)
        self._queueing = 0

    def _run_batch(self, batch: Batch) -> None:
        """Runs a batch on the loop's thread."""
        watchdog = self._watchdog
        watchdog.since = now_ns()
        try:
            self._idle[-1].run_inline(batch)
        finally:
            watchdog.since = 0

    def _settle_inline(self, batch: Batch) -> None:
        """Answers the callers of a batch that ran on the loop's thread, and learns from it."""
        elapsed = batch.compute_end - batch.compute_start
        if batch.hung:
            self._inline.forbid()
        elif elapsed > OVERRUN_NS:
            self._inline.overran(batch.rows, elapsed, batch.compute_end, self._runs)
        self._settle(batch)
        if not self._runs & 7:
            self._answered(batch.compute_end)
        if not self._runs & 7 or self._inline.retrying:
            self._inline.observe(batch.rows, elapsed, batch.compute_end)

    def _finished(self, instance: Instance, batch: Batch) -> None:
        """A batch has ended on its thread."""
        if instance.abandoned:
            # Its requests were answered when it was abandoned.
            self._replacements.ended(instance)
            return
        if self._ahead is not None:
            self._ahead.withdraw()
        instance.ended(batch)
        if not batch.errors and batch.error is None and batch.retried is None and batch.requests:
            self._inline.ran_on_thread(batch.rows, batch.compute_end - batch.compute_start)
        if instance.running is None:
            self._idle.append(instance)
        self._update_busy()
        if self._gate is not None:
            # The gate calls the runner whose turn it is, of this model or another, in the next turn of the loop.
            self._gate.exit(instance, again=bool(self.queue.pending))
        # The next batch first: the instance computes while the loop writes answers.
        elif self.queue.pending:
            self._pump()
            if self._ahead is not None:
                self._ahead.refresh()
        self._settle(batch)
        # Called after the answers were written: ``_settle`` only schedules that.
        self._loop.call_soon(self._answered, batch.compute_end)

    def _answered(self, finished: int) -> None:
        self._answering.observe(now_ns() - finished)
        self.queue.reserve_for_answering(self._answering.cautious)

    @property
    def finished(self) -> Callable[[Instance, Batch], None]:
        """The callback of instances."""
        return self._finished

    def _settle(self, batch: Batch) -> None:
        """Answers the callers of a finished batch."""
        for request in batch.dropped:
            self._fail(request, Cancelled("the caller has gone"))
        if not batch.requests:
            return
        if batch.error is not None:
            for request in batch.requests:
                self._stamp(request, batch)
                self._fail(request, batch.error)
            return
        if batch.retried is not None:
            self._failures.batch_retried(batch)
        infer_ns = batch.infer_end - batch.infer_start
        if not batch.errors:
            elapsed = batch.occupied or batch.compute_end - batch.compute_start
            self._runs += 1
            # A retried batch says nothing about the time of one run.
            if batch.retried is None and (not self._runs & 7 or elapsed > INLINE_NS):
                self.curve.observe(batch.rows, elapsed)
            self._statistics.record_batch(
                batch.rows, batch.infer_start - batch.compute_start, infer_ns, batch.compute_end - batch.infer_end
            )
        record = self._statistics.record_success
        for index, request in enumerate(batch.requests):
            outputs = batch.results[index]
            request.compute_start = batch.compute_start
            request.infer_start = batch.infer_start
            request.infer_end = batch.infer_end
            request.compute_end = batch.compute_end
            if outputs is None:
                self._fail(request, batch.errors[index])
                continue
            if self._order is not None:
                self._release_in_order(request, outputs)
                continue
            record(request, batch.compute_end, request.plan.batch_size)
            self._request_ended()
            if request.cancelled:
                request.dropped()
            else:
                answer(request, outputs)
        self._last_answer = now_ns()

    @staticmethod
    def _stamp(request: InferRequest, batch: Batch) -> None:
        request.compute_start = batch.compute_start
        request.infer_start = batch.infer_start
        request.infer_end = batch.infer_end
        request.compute_end = batch.compute_end

    def _fail(self, request: InferRequest, error: IsochroneError) -> None:
        self._failures.request_failed(error)
        if self._order is not None and request in self._order:
            self._release_in_order(request, error)
        else:
            self._send_failure(request, error)

    def _release_in_order(self, request: InferRequest, outcome: Tensors | IsochroneError) -> None:
        """preserve_ordering: an answer waits until the earlier requests are answered."""
        assert self._order is not None
        for ready, result in self._order.settle(request, outcome):
            if isinstance(result, IsochroneError):
                self._send_failure(ready, result)
                continue
            self._statistics.record_success(ready, ready.compute_end, ready.plan.batch_size)
            self._request_ended()
            if ready.cancelled:
                ready.dropped()
            else:
                answer(ready, result)

    # Hung runs and unload.

    def check_stuck(self, now: int) -> None:
        """Rejects late requests and abandons runs that exceed their limit. Called about ten times a second."""
        self._inline.retry(now)
        if self.queue.requests and not self._idle:
            if self._ahead is not None:
                self._ahead.withdraw()
            self.queue.drop_late(now)
            self._fail_rejected()
        if self._rejections != self._rejections_seen and self._runs == self._runs_seen and self._idle:
            self.curve.relax()
            self._answering.relax()
            self.queue.reserve_for_answering(self._answering.cautious)
        self._rejections_seen, self._runs_seen = self._rejections, self._runs
        if self._execution_timeout_ns:
            self._abandon_stuck(now, self._execution_timeout_ns)

    def _abandon_stuck(self, now: int, limit_ns: int) -> None:
        for instance in list(self.instances):
            batch = instance.running
            if batch is None or now - instance.busy_since < limit_ns:
                continue
            if self._ahead is not None:
                self._ahead.withdraw()
            if instance.following is not None:
                continue  # the run has ended; its callback is scheduled
            instance.running = None
            self._replace(instance)
            error = self._took_too_long("the instance was abandoned and is replaced")
            for request in batch.all_requests():
                self._fail(request, error)

    def fail_all(self, error: IsochroneError | None = None) -> None:
        """Fails queued and running requests: the version is being unloaded and does not wait longer."""
        error = self._rejection = error or self._unloading()
        if self._ahead is not None:
            self._ahead.withdraw()
        for request in self.queue.clear():
            self._fail(request, error)
        for instance in self.instances:
            if instance.running is not None:
                stuck = [batch for batch in (instance.running, instance.following) if batch is not None]
                instance.running, instance.following, instance.abandoned = None, None, True
                for request in [request for batch in stuck for request in batch.all_requests()]:
                    self._fail(request, error)

    def _replace(self, instance: Instance) -> None:
        if self._gate is not None:
            self._gate.remove(instance)
        super()._replace(instance)

    def _replaced(self, made: Instance | IsochroneError) -> None:
        if self._gate is not None and isinstance(made, Instance) and self._rejection is None:
            self._gate.add(made, self._pump)
        super()._replaced(made)

    def release(self) -> None:
        super().release()
        self._inline.close()
        if self._gate is not None:
            self._gate.close()
        if self._alarm is not None:
            self._alarm.close()
        if self._ahead is not None:
            self._ahead.close()
        self._alarm = self._ahead = None
