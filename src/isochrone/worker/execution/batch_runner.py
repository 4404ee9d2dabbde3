"""The shell around a scheduling decision: takes requests, asks the queue for batches, puts them on instances.

All on the loop's thread; instances compute on theirs. A batch that is expected to take under 100 µs runs right here,
inline: handing it to a thread and back costs 22 µs and a context switch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from isochrone.clock import MICROSECOND, NEVER, now_ns
from isochrone.errors import Cancelled, IsochroneError
from isochrone.worker.execution.batch import Batch, answer, as_model_error
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
from isochrone.worker.scheduling.latency_curve import LatencyCurve, RunningTime

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.statistics import ModelStatistics

#: Batches of one request in a row after which a request that finds nobody else runs at once, without the queue.
_LONELY_BATCHES = 4
#: A request so soon behind a single run was not alone.
_BURST_NS = 20 * MICROSECOND


class Runner(QueuedRunner):
    """Runs one version of a model that keeps no state between requests and gives each one answer."""

    def __init__(
        self,
        name: str,
        rules: QueueRules,
        curve: LatencyCurve,
        statistics: ModelStatistics,
        watchdog: InlineWatchdog,
        over: Callable[[], None],
        *,
        preserve_ordering: bool = False,
        execution_timeout_ns: int = 0,
        gate: ResourceGate | None = None,
    ) -> None:
        super().__init__(name, rules, curve, statistics, over, execution_timeout_ns)
        self._watchdog = watchdog
        #: Where instances ask for resources before they run; None: they need none.
        self._gate = gate
        self._pump_planned = False
        self._alarm: Alarm | None = None
        self._ahead: LookAhead | None = None
        self._inline = InlineRuns(name, self._loop)
        #: From a batch's end to the last of its answers.
        self._answering = RunningTime()
        self._runs = 0
        #: Batches of one request in a row, and when the last single run ended.
        self._lonely = 0
        self._single_ended = 0
        #: Requests refused, and runs, at the last look of ``check_stuck``.
        self._refusals = self._refusals_seen = self._runs_seen = 0
        self._order = AnswerOrder() if preserve_ordering else None

    def start(self, instances: list[Instance], replacement: MakeInstance) -> None:
        super().start(instances, replacement)
        if self._rules.delay_ns:
            self._alarm = Alarm(self._loop, self._pump)
        if self._gate is not None:
            # Every run asks first, so none starts on the loop's own thread or right behind another.
            for index, instance in enumerate(instances):
                self._gate.add(instance, self._pump, index)
            return
        if instances[0].executable.inline_allowed:
            self._inline.allow()
        self._ahead = LookAhead(self.queue, self.curve, self.instances, self._loop)

    # In.

    def submit(self, request: InferRequest) -> None:
        """Takes a request; raises if it cannot be queued."""
        if self._refusal is not None:
            raise self._refusal
        if self._order is not None:
            self._order.join(request)
        elif (limit := self._inline.limit_ns) and not self.queue.requests and self._idle and self._is_alone(request):
            # Nothing to batch with and nobody to wait for: the shortest way there is.
            rows = request.plan.batch_size
            expected = self.curve.estimate(rows)
            if 0 < expected <= limit:
                if request.deadline != NEVER:
                    miss = now_ns() + expected + self.queue.margin_ns - request.deadline
                    if miss > 0:
                        self._refusals += 1
                        raise would_miss(request, miss)
                self._run_single(self._idle[-1], request, rows)
                return
        try:
            self.queue.push(request, now_ns())
        except IsochroneError:
            self._refusals += 1
            if self._order is not None:
                self._order.leave(request)
            raise
        if not self._pump_planned:
            self._pump_planned = True
            # At the end of this loop turn: everything that arrives in the same turn can share a batch.
            self._loop.call_soon(self._planned_pump)

    def _is_alone(self, request: InferRequest) -> bool:
        """Whether no other request is likely to arrive in this loop turn, so that waiting for its end gains nothing."""
        rules = self._rules
        if rules.max_rows == 1:
            return True
        if self._lonely < _LONELY_BATCHES or rules.delay_ns:
            return False
        if request.arrived - self._single_ended < _BURST_NS:
            self._lonely = 0
            return False
        return True

    def _planned_pump(self) -> None:
        self._pump_planned = False
        self._pump()
        if self._ahead is not None and not self._idle:
            self._ahead.refresh()

    def _pump(self) -> None:
        """Starts what may start now."""
        queue = self.queue
        if self._ahead is not None and self._idle:
            self._ahead.withdraw()
        inline = 0
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
            if queue.refused:
                self._fail_refused()
            if not requests:
                if self._gate is not None:
                    self._gate.exit(self._idle[-1])
                break
            self._lonely = self._lonely + 1 if len(requests) == 1 else 0
            rows = 0
            for request in requests:
                rows += request.plan.batch_size
            expected = self.curve.estimate(rows)
            if 0 < expected <= self._inline.limit_ns:
                self._run_inline(self._idle[-1], Batch(requests, rows))
                inline += 1
                if inline >= TURN_RUNS and queue.pending:
                    if not self._pump_planned:
                        self._pump_planned = True
                        self._loop.call_soon(self._planned_pump)
                    break
            else:
                instance = self._idle.pop()
                instance.start(Batch(requests, rows), expected)
                self._note_free()
        if queue.refused:
            self._fail_refused()

    # Running and out.

    def _run_single(self, instance: Instance, request: InferRequest, rows: int) -> None:
        """One request, alone and inline: what ``_run_inline`` does, without the batch around it."""
        watchdog = self._watchdog
        request.dispatched = request.enqueued
        watchdog.since = started = now_ns()
        try:
            outputs = instance.executable.execute(request.inputs, request.plan.outputs)
        except BaseException as error:
            watchdog.since = 0
            self._single_failed(request, error)
            return
        watchdog.since = 0
        ended = now_ns()
        request.compute_start = request.infer_start = started
        request.infer_end = request.compute_end = ended
        # One run in eight is enough for the curve; a slow one always counts.
        self._runs += 1
        self._single_ended = ended
        if not self._runs & 7 or ended - started > INLINE_NS:
            self.curve.observe(rows, ended - started)
            if ended - started > OVERRUN_NS:
                self._inline.overran(ended - started, ended)
        self._statistics.record_single(request, ended, rows)
        self._over()
        answer(request, outputs)

    def _single_failed(self, request: InferRequest, error: BaseException) -> None:
        if isinstance(error, InlineHang) or isinstance(error.__cause__, InlineHang):
            self._inline.forbid()
        self._fail(request, as_model_error(error, request))

    def _run_inline(self, instance: Instance, batch: Batch) -> None:
        watchdog = self._watchdog
        watchdog.since = now_ns()
        try:
            instance.run_inline(batch)
        finally:
            watchdog.since = 0
        if batch.hung:
            self._inline.forbid()
        elif batch.compute_end - batch.compute_start > OVERRUN_NS:
            self._inline.overran(batch.compute_end - batch.compute_start, batch.compute_end)
        self._settle(batch)
        if not self._runs & 7:
            self._answered(batch.compute_end)

    def _finished(self, instance: Instance, batch: Batch) -> None:
        """A batch came back from its thread."""
        if instance.abandoned:
            # Its requests have been answered.
            self._replacements.ended(instance)
            return
        if self._ahead is not None:
            self._ahead.withdraw()
        instance.ended(batch)
        if instance.running is None:
            self._idle.append(instance)
        self._note_free()
        if self._gate is not None:
            # Whose turn it is now, of this model or another, is pumped in the next turn of the loop.
            self._gate.exit(instance, again=bool(self.queue.pending))
        # The next batch first: the instance computes while answers are written.
        elif self.queue.pending:
            self._pump()
            if self._ahead is not None:
                self._ahead.refresh()
        self._settle(batch)
        # Called when the answers have been written, which settling has only planned.
        self._loop.call_soon(self._answered, batch.compute_end)

    def _answered(self, finished: int) -> None:
        self._answering.observe(now_ns() - finished)
        self.queue.allow_for_answering(self._answering.cautious)

    @property
    def finished(self) -> Callable[[Instance, Batch], None]:
        """What instances call when a batch is done."""
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
            # Two goes at it say nothing of one.
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
            self._over()
            if request.cancelled:
                request.dropped()
            else:
                answer(request, outputs)

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
        """preserve_ordering: an answer waits until those that arrived before it are out."""
        assert self._order is not None
        for ready, result in self._order.settle(request, outcome):
            if isinstance(result, IsochroneError):
                self._send_failure(ready, result)
                continue
            self._statistics.record_success(ready, ready.compute_end, ready.plan.batch_size)
            self._over()
            if ready.cancelled:
                ready.dropped()
            else:
                answer(ready, result)

    # Trouble and the end.

    def check_stuck(self, now: int) -> None:
        """Called about ten times a second: refuses what is late by now, gives up on runs over their limit."""
        if self.queue.requests and not self._idle:
            if self._ahead is not None:
                self._ahead.withdraw()
            self.queue.drop_late(now)
            self._fail_refused()
        if self._refusals != self._refusals_seen and self._runs == self._runs_seen and self._idle:
            self.curve.relax()
            self._answering.relax()
            self.queue.allow_for_answering(self._answering.cautious)
        self._refusals_seen, self._runs_seen = self._refusals, self._runs
        if self._execution_timeout_ns:
            self._give_up_stuck(now, self._execution_timeout_ns)

    def _give_up_stuck(self, now: int, limit_ns: int) -> None:
        for instance in list(self.instances):
            batch = instance.running
            if batch is None or now - instance.busy_since < limit_ns:
                continue
            if self._ahead is not None:
                self._ahead.withdraw()
            if instance.following is not None:
                continue  # the run has ended, and word of it is on its way
            instance.running = None
            self._replace(instance)
            error = self._took_too_long("the instance was given up and is replaced")
            for request in batch.everybody():
                self._fail(request, error)

    def fail_all(self, error: IsochroneError | None = None) -> None:
        """Fails what is queued or stuck: the version is going away and will not wait longer."""
        error = self._refusal = error or self._unloading()
        if self._ahead is not None:
            self._ahead.withdraw()
        for request in self.queue.clear():
            self._fail(request, error)
        for instance in self.instances:
            if instance.running is not None:
                stuck = [batch for batch in (instance.running, instance.following) if batch is not None]
                instance.running, instance.following, instance.abandoned = None, None, True
                for request in [request for batch in stuck for request in batch.everybody()]:
                    self._fail(request, error)

    def _replace(self, instance: Instance) -> None:
        if self._gate is not None:
            self._gate.remove(instance)
        super()._replace(instance)

    def _replaced(self, made: Instance | IsochroneError) -> None:
        if self._gate is not None and isinstance(made, Instance) and self._refusal is None:
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
