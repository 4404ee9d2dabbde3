"""The shell around a scheduling decision: takes requests, asks the queue for batches, puts them on instances.

All on the loop's thread; instances compute on theirs. A batch that is expected to take under 100 µs runs right here,
inline: handing it to a thread and back costs 22 µs and a context switch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from isochrone.clock import MICROSECOND, NEVER, now_ns
from isochrone.errors import Cancelled, DeadlineExceeded, Internal, IsochroneError, ModelFailed, Unavailable
from isochrone.worker.alarm import Alarm
from isochrone.worker.batch import Batch, as_model_error
from isochrone.worker.instance import Instance
from isochrone.worker.scheduler import BatchQueue, QueueRules
from isochrone.worker.watchdog import InlineHang, InlineWatchdog

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.curve import LatencyCurve
    from isochrone.worker.statistics import ModelStatistics

log = structlog.get_logger()

#: Longest expected run that happens on the loop's thread.
INLINE_NS = 100 * MICROSECOND
#: Inline batches in one loop turn before sockets get a turn.
_INLINE_BATCHES = 8
#: Requests of an asynchronous decoupled model under way at once on one instance.
_MAX_STREAMS = 64
_MAX_REPLACEMENTS = 8


class Runner:
    """Runs one version of a model that keeps no state between requests."""

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
    ) -> None:
        self.queue = BatchQueue(rules, curve)
        self.curve = curve
        self.instances: list[Instance] = []
        self._name = name
        self._rules = rules
        self._statistics = statistics
        self._watchdog = watchdog
        #: Called when a request is over, however it ended.
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._idle: list[Instance] = []
        self._pump_planned = False
        self._alarm: Alarm | None = None
        self._inline_ns = 0
        self._runs = 0
        self._order: deque[InferRequest] | None = deque() if preserve_ordering else None
        self._held: dict[int, tuple[InferRequest, Tensors | IsochroneError]] = {}
        self._execution_timeout_ns = execution_timeout_ns
        self._replacements = 0
        self._make_replacement: Callable[[], Instance] | None = None
        self._decoupled = False

    def start(self, instances: list[Instance], replacement: Callable[[], Instance]) -> None:
        """Puts warmed instances to work."""
        self.instances = instances
        self._idle = list(instances)
        self.queue = BatchQueue(self._rules, self.curve, len(instances))
        self._make_replacement = replacement
        executable = instances[0].executable
        self._decoupled = executable.decoupled
        if executable.inline_allowed and not executable.decoupled:
            self._inline_ns = INLINE_NS
        if self._rules.delay_ns:
            self._alarm = Alarm(self._loop, self._pump)

    @property
    def pending(self) -> int:
        return self.queue.pending

    def estimated_wait(self, now: int) -> int:
        return self.queue.estimated_wait(now)

    # In.

    def submit(self, request: InferRequest) -> None:
        """Takes a request; raises if it cannot be queued."""
        if self._order is not None:
            self._order.append(request)
        rules = self._rules
        if rules.max_rows == 1 and not self.queue.requests and self._idle and self._inline_ns and not self._order:
            # Nothing to batch with and nobody to wait for: the shortest way there is.
            rows = request.plan.batch_size
            expected = self.curve.estimate(rows)
            if 0 < expected <= self._inline_ns:
                if request.deadline != NEVER and now_ns() + expected > request.deadline:
                    raise DeadlineExceeded(f"Request timeout expired: model '{request.plan.model_name}'")
                self._run_single(self._idle[-1], request, rows)
                return
        try:
            self.queue.push(request, now_ns())
        except IsochroneError:
            if self._order is not None:
                self._order.remove(request)
            raise
        if not self._pump_planned:
            self._pump_planned = True
            # At the end of this loop turn: everything that arrives in the same turn can share a batch.
            self._loop.call_soon(self._planned_pump)

    def _planned_pump(self) -> None:
        self._pump_planned = False
        self._pump()

    def _pump(self) -> None:
        """Starts what may start now."""
        queue = self.queue
        inline = 0
        while self._idle and queue.pending:
            now = now_ns()
            wake = queue.wake_at(now)
            if wake is not None and wake > now:
                if self._alarm is not None:
                    self._alarm.set(wake)
                break
            requests = queue.take(now)
            if queue.refused:
                self._fail_refused()
            if not requests:
                break
            if self._decoupled:
                self._start_streams(requests)
                continue
            rows = 0
            for request in requests:
                rows += request.plan.batch_size
            expected = self.curve.estimate(rows)
            if 0 < expected <= self._inline_ns:
                self._run_inline(self._idle[-1], Batch(requests, rows))
                inline += 1
                if inline >= _INLINE_BATCHES and queue.pending:
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

    def _note_free(self) -> None:
        self.queue.free_at = 0 if self._idle else min(instance.expected_end for instance in self.instances)

    def _fail_refused(self) -> None:
        refused, self.queue.refused = self.queue.refused, []
        for request, error in refused:
            self._fail(request, error)

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
        if not self._runs & 7 or ended - started > self._inline_ns:
            self.curve.observe(rows, ended - started)
        self._statistics.record_single(request, ended, rows)
        self._over()
        request.complete(outputs)

    def _single_failed(self, request: InferRequest, error: BaseException) -> None:
        if isinstance(error, InlineHang) or isinstance(error.__cause__, InlineHang):
            self._run_on_threads()
        self._fail(request, as_model_error(error, request))

    def _run_on_threads(self) -> None:
        self._inline_ns = 0
        log.warning("model hung in an inline run; it runs on its own thread from now on", model=self._name)

    def _run_inline(self, instance: Instance, batch: Batch) -> None:
        watchdog = self._watchdog
        watchdog.since = now_ns()
        try:
            instance.run_inline(batch)
        finally:
            watchdog.since = 0
        if batch.hung:
            self._run_on_threads()
        self._settle(batch)

    def _finished(self, instance: Instance, batch: Batch) -> None:
        """A batch came back from its thread."""
        if instance.abandoned:
            return
        instance.running = None
        self._idle.append(instance)
        self._note_free()
        # The next batch first: the instance computes while answers are written.
        if self.queue.pending:
            self._pump()
        self._settle(batch)

    @property
    def finished(self) -> Callable[[Instance, Batch], None]:
        """What instances call when a batch is done."""
        return self._finished

    def _settle(self, batch: Batch) -> None:
        """Answers the callers of a finished batch."""
        if batch.error is not None:
            for request in batch.requests:
                self._stamp(request, batch)
                self._fail(request, batch.error)
            return
        infer_ns = batch.infer_end - batch.infer_start
        if not batch.errors:
            self.curve.observe(batch.rows, batch.compute_end - batch.compute_start)
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
            if not request.cancelled:
                self._answer(request, outputs)

    @staticmethod
    def _answer(request: InferRequest, outputs: Tensors) -> None:
        """A fault while one answer is written must not reach its batch-mates."""
        try:
            request.complete(outputs)
        except Exception as error:
            log.error("an answer could not be written", model=request.plan.model_name, exc_info=error)
            request.fail(Internal(f"{type(error).__name__}: {error}"))

    @staticmethod
    def _stamp(request: InferRequest, batch: Batch) -> None:
        request.compute_start = batch.compute_start
        request.infer_start = batch.infer_start
        request.infer_end = batch.infer_end
        request.compute_end = batch.compute_end

    def _fail(self, request: InferRequest, error: IsochroneError) -> None:
        if self._order is not None and request in self._order:
            self._release_in_order(request, error)
            return
        self._statistics.record_failure(error.code, now_ns() - request.arrived)
        self._over()
        if not request.cancelled and not isinstance(error, Cancelled):
            request.fail(error)

    def _release_in_order(self, request: InferRequest, result: Tensors | IsochroneError) -> None:
        """preserve_ordering: an answer waits until those that arrived before it are out."""
        order = self._order
        assert order is not None
        self._held[id(request)] = (request, result)
        while order and id(order[0]) in self._held:
            first, outcome = self._held.pop(id(order.popleft()))
            if isinstance(outcome, IsochroneError):
                self._statistics.record_failure(outcome.code, now_ns() - first.arrived)
                self._over()
                if not first.cancelled:
                    first.fail(outcome)
            else:
                self._statistics.record_success(first, first.compute_end, first.plan.batch_size)
                self._over()
                if not first.cancelled:
                    self._answer(first, outcome)

    # Decoupled models.

    def _start_streams(self, requests: list[InferRequest]) -> None:
        for request in requests:
            instance = self._idle[-1]

            def finished(instance: Instance, error: IsochroneError | None, request: InferRequest = request) -> None:
                self._stream_over(instance, request, error)

            instance.start_stream(request, finished)
            # A generator holds its thread; asynchronous ones share a loop of their own.
            if instance.streams >= _MAX_STREAMS or not instance.executable.is_async:
                self._idle.remove(instance)

    def _stream_over(self, instance: Instance, request: InferRequest, error: IsochroneError | None) -> None:
        if instance not in self._idle and not instance.abandoned:
            self._idle.append(instance)
        now = now_ns()
        if error is not None:
            self._fail(request, error)
        else:
            self._statistics.record_batch(1, 0, request.infer_end - request.infer_start, 0)
            self._statistics.record_success(request, now, 1)
            self._over()
            if not request.cancelled:
                request.finish()
        if self.queue.pending:
            self._pump()

    # Trouble and the end.

    def check_stuck(self, now: int) -> None:
        """Called about ten times a second: gives up on runs beyond ``execution_timeout_ms``."""
        if not self._execution_timeout_ns:
            return
        for instance in list(self.instances):
            batch = instance.running
            if batch is None or now - instance.busy_since < self._execution_timeout_ns:
                continue
            self._abandon(instance)
            error = ModelFailed(
                f"model '{self._name}': a run took over execution_timeout_ms "
                f"({self._execution_timeout_ns // 1_000_000}); the instance was given up and replaced"
            )
            for request in batch.requests:
                self._fail(request, error)

    def _abandon(self, instance: Instance) -> None:
        instance.abandoned = True
        self.instances.remove(instance)
        if instance in self._idle:
            self._idle.remove(instance)
        self._replacements += 1
        if self._make_replacement is None or self._replacements > _MAX_REPLACEMENTS:
            log.error("too many hung instances; not replaced", model=self._name, hung=self._replacements)
            return
        log.warning("instance hung and was replaced", model=self._name, hung=self._replacements)
        replacement = self._make_replacement()
        self.instances.append(replacement)
        self._idle.append(replacement)
        if self.queue.pending:
            self._pump()

    def fail_all(self, error: IsochroneError | None = None) -> None:
        """Fails what is queued or stuck: the version is going away and will not wait longer."""
        error = error or Unavailable(f"model '{self._name}' is being unloaded")
        for request in self.queue.clear():
            self._fail(request, error)
        for instance in self.instances:
            if instance.running is not None:
                batch, instance.running, instance.abandoned = instance.running, None, True
                for request in batch.requests:
                    self._fail(request, error)

    def close(self) -> None:
        """Frees the instances; blocks for their threads, so it runs off the loop."""
        for instance in self.instances:
            instance.close()

    def release(self) -> None:
        """On the loop, before ``close``."""
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None
