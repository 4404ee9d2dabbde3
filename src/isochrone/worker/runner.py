"""The shell around a scheduling decision: takes requests, asks the queue for batches, puts them on instances.

All on the loop's thread; instances compute on theirs. A batch that is expected to take under 100 µs runs right here,
inline: handing it to a thread and back costs 22 µs and a context switch.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from isochrone.clock import MICROSECOND, NEVER, SECOND, now_ns
from isochrone.errors import Cancelled, DeadlineExceeded, IsochroneError, ModelFailed, Unavailable
from isochrone.worker.alarm import Alarm
from isochrone.worker.batch import Batch, answer, as_model_error
from isochrone.worker.curve import LatencyCurve, RunningTime
from isochrone.worker.instance import DecoupledRun, Instance
from isochrone.worker.lookahead import LookAhead
from isochrone.worker.scheduler import BatchQueue, QueueRules
from isochrone.worker.watchdog import InlineHang, InlineWatchdog

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.statistics import ModelStatistics

log = structlog.get_logger()

#: Longest expected run that happens on the loop's thread.
INLINE_NS = 100 * MICROSECOND
#: An inline run this long held up every other caller: the model goes to its thread for a while, first for this many
#: seconds, then twice as many each time. A stall of the machine costs 22 µs per request so long; a model that is slow
#: now and then is inline ever more rarely.
_OVERRUN_NS = 2000 * MICROSECOND
_LONG_OVERRUN_NS = 20_000 * MICROSECOND
_OVERRUN_PAUSE = 1.0
_LONGEST_PAUSE = 3600.0
#: Batches of one request in a row after which a request that finds nobody else runs at once, without the queue.
_LONELY_BATCHES = 4
#: A request so soon behind a single run was not alone.
_BURST_NS = 20 * MICROSECOND
#: Inline batches in one loop turn before sockets get a turn.
_INLINE_BATCHES = 8
#: Requests of an asynchronous decoupled model under way at once on one instance.
_MAX_STREAMS = 64
#: Runs given up that have not ended; each keeps a thread and a copy of the model.
_MAX_HUNG = 8

#: Makes a new instance off the loop's thread, then calls back on it with that or with what went wrong.
MakeInstance = Callable[[Callable[["Instance | IsochroneError"], None]], None]


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
        self._ahead: LookAhead | None = None
        self._closed = False
        self._inline_ns = 0
        self._inline_pause = _OVERRUN_PAUSE
        self._inline_again: asyncio.TimerHandle | None = None
        #: From a batch's end to the last of its answers.
        self._answering = RunningTime()
        self._runs = 0
        #: Batches of one request in a row, and when the last single run ended.
        self._lonely = 0
        self._single_ended = 0
        self._last_overrun = 0
        #: Requests refused, and runs, at the last look of ``check_stuck``.
        self._refusals = self._refusals_seen = self._runs_seen = 0
        self._order: deque[InferRequest] | None = deque() if preserve_ordering else None
        self._held: dict[int, tuple[InferRequest, Tensors | IsochroneError]] = {}
        self._execution_timeout_ns = execution_timeout_ns
        #: Given up, and still inside their last run.
        self._hung: set[Instance] = set()
        self._make_replacement: MakeInstance | None = None
        self._decoupled = False
        self._streams: dict[InferRequest, DecoupledRun] = {}
        #: Why no request is taken: the version is going away, or none of its instances is left.
        self._refusal: IsochroneError | None = None

    def start(self, instances: list[Instance], replacement: MakeInstance) -> None:
        """Puts warmed instances to work."""
        self.instances = instances
        self._idle = list(instances)
        executable = instances[0].executable
        self._decoupled = executable.decoupled
        if self._decoupled:
            # Each request is a run of its own.
            self._rules = replace(self._rules, max_rows=1, preferred=(), delay_ns=0)
        self.queue = BatchQueue(self._rules, self.curve, len(instances))
        self._make_replacement = replacement
        if executable.inline_allowed and not executable.decoupled:
            self._inline_ns = INLINE_NS
        if self._rules.delay_ns:
            self._alarm = Alarm(self._loop, self._pump)
        if not self._decoupled:
            self._ahead = LookAhead(self.queue, self.curve, self.instances, self._loop)

    @property
    def pending(self) -> int:
        return self.queue.pending

    def steps_digest(self) -> str:
        return ""

    def estimated_wait(self, now: int) -> int:
        return self.queue.estimated_wait(now)

    # In.

    def submit(self, request: InferRequest) -> None:
        """Takes a request; raises if it cannot be queued."""
        if self._refusal is not None:
            raise self._refusal
        if self._order is not None:
            self._order.append(request)
        if self._inline_ns and not self.queue.requests and self._idle and not self._order and self._is_alone(request):
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
            self._refusals += 1
            if self._order is not None:
                self._order.remove(request)
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
            requests = queue.take(now)
            if queue.refused:
                self._fail_refused()
            if not requests:
                break
            if self._decoupled:
                self._start_streams(requests)
                continue
            self._lonely = self._lonely + 1 if len(requests) == 1 else 0
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
        idle = self._idle
        self.queue.occupy([0 if instance in idle else instance.free_at for instance in self.instances] or [0])

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
        self._single_ended = ended
        if not self._runs & 7 or ended - started > self._inline_ns:
            self.curve.observe(rows, ended - started)
            if ended - started > _OVERRUN_NS:
                self._overran(ended - started, ended)
        self._statistics.record_single(request, ended, rows)
        self._over()
        answer(request, outputs)

    def _single_failed(self, request: InferRequest, error: BaseException) -> None:
        if isinstance(error, InlineHang) or isinstance(error.__cause__, InlineHang):
            self._run_on_threads()
        self._fail(request, as_model_error(error, request))

    def _overran(self, elapsed: int, now: int) -> None:
        """An inline run took over ``_OVERRUN_NS``: a long one, or the second within a second, means a thread.

        A single short one may be the machine's own: a shared one stalls any run now and then.
        """
        if elapsed < _LONG_OVERRUN_NS and now - self._last_overrun > SECOND:
            self._last_overrun = now
            return
        self._inline_ns = 0
        if self._inline_again is None:
            self._inline_again = self._loop.call_later(self._inline_pause, self._return_inline)
            self._inline_pause = min(2 * self._inline_pause, _LONGEST_PAUSE)

    def _return_inline(self) -> None:
        self._inline_again = None
        self._inline_ns = INLINE_NS

    def _run_on_threads(self) -> None:
        self._inline_ns = 0
        if self._inline_again is not None:
            self._inline_again.cancel()
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
        elif batch.compute_end - batch.compute_start > _OVERRUN_NS:
            self._overran(batch.compute_end - batch.compute_start, batch.compute_end)
        self._settle(batch)

    def _finished(self, instance: Instance, batch: Batch) -> None:
        """A batch came back from its thread."""
        if instance.abandoned:
            # Its requests have been answered; the thread is free to end now.
            if instance in self._hung:
                self._hung.discard(instance)
                instance.close()
            return
        if self._ahead is not None:
            self._ahead.withdraw()
        instance.ended(batch)
        if instance.running is None:
            self._idle.append(instance)
        self._note_free()
        # The next batch first: the instance computes while answers are written.
        if self.queue.pending:
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
        infer_ns = batch.infer_end - batch.infer_start
        if not batch.errors:
            elapsed = batch.occupied or batch.compute_end - batch.compute_start
            self._runs += 1
            if not self._runs & 7 or elapsed > INLINE_NS:
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
        if self._order is not None and request in self._order:
            self._release_in_order(request, error)
            return
        self._statistics.record_failure(error.code, now_ns() - request.arrived)
        self._over()
        if request.cancelled:
            request.dropped()
        else:
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
                if first.cancelled:
                    first.dropped()
                else:
                    first.fail(outcome)
            else:
                self._statistics.record_success(first, first.compute_end, first.plan.batch_size)
                self._over()
                if first.cancelled:
                    first.dropped()
                else:
                    answer(first, outcome)

    # Decoupled models.

    def _start_streams(self, requests: list[InferRequest]) -> None:
        for request in requests:
            instance = self._idle[-1]

            def finished(instance: Instance, error: IsochroneError | None, request: InferRequest = request) -> None:
                self._stream_over(instance, request, error)

            self._streams[request] = instance.start_stream(request, finished)
            # A generator holds its thread; asynchronous ones share a loop of their own.
            if instance.streams >= _MAX_STREAMS or not instance.executable.is_async:
                self._idle.remove(instance)

    def _stream_over(self, instance: Instance, request: InferRequest, error: IsochroneError | None) -> None:
        del self._streams[request]
        if instance not in self._idle and not instance.abandoned:
            self._idle.append(instance)
        now = now_ns()
        if error is not None:
            self._fail(request, error)
        else:
            self._statistics.record_batch(1, 0, request.infer_end - request.infer_start, 0)
            self._statistics.record_success(request, now, 1)
            self._over()
            if request.cancelled:
                request.dropped()
            else:
                request.finish()
        if self.queue.pending:
            self._pump()

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
        if not self._execution_timeout_ns:
            return
        for instance in list(self.instances):
            batch = instance.running
            if batch is None or now - instance.busy_since < self._execution_timeout_ns:
                continue
            if self._ahead is not None:
                self._ahead.withdraw()
            if instance.following is not None:
                continue  # the run has ended, and word of it is on its way
            self._abandon(instance)
            error = ModelFailed(
                f"model '{self._name}': a run took over execution_timeout_ms "
                f"({self._execution_timeout_ns // 1_000_000}); the instance was given up and is replaced"
            )
            for request in batch.requests:
                self._fail(request, error)

    def _abandon(self, instance: Instance) -> None:
        instance.abandoned = True
        instance.running = None
        self.instances.remove(instance)
        self._hung.add(instance)
        self._note_free()
        if self._make_replacement is None or len(self._hung) > _MAX_HUNG:
            log.error("too many hung runs; the instance is not replaced", model=self._name, hung=len(self._hung))
            self._replaced(Unavailable(f"model '{self._name}': {len(self._hung)} runs hang; no instance is left"))
            return
        log.warning("a run hung; its instance is being replaced", model=self._name, hung=len(self._hung))
        self._make_replacement(self._replaced)

    def _replaced(self, made: Instance | IsochroneError) -> None:
        """A new instance is there, or there will be none."""
        if isinstance(made, IsochroneError):
            log.error("a hung instance was not replaced", model=self._name, error=str(made))
            if not self.instances:
                self._refusal = made
                for request in self.queue.clear():
                    self._fail(request, made)
            return
        if self._refusal is not None:
            threading.Thread(target=made.close, name="closing", daemon=True).start()
            return
        self.instances.append(made)
        self._idle.append(made)
        self._note_free()
        if self.queue.pending:
            self._pump()

    def fail_all(self, error: IsochroneError | None = None) -> None:
        """Fails what is queued or stuck: the version is going away and will not wait longer."""
        error = error or Unavailable(f"model '{self._name}' is being unloaded")
        self._refusal = error
        if self._ahead is not None:
            self._ahead.withdraw()
        for request in self.queue.clear():
            self._fail(request, error)
        for instance in self.instances:
            if instance.running is not None:
                stuck = [batch for batch in (instance.running, instance.following) if batch is not None]
                instance.running, instance.following, instance.abandoned = None, None, True
                for request in [request for batch in stuck for request in batch.requests]:
                    self._fail(request, error)
            elif instance.streams:
                instance.abandoned = True
        for request, run in list(self._streams.items()):
            run.stopped = True
            self._fail(request, error)
        self._streams.clear()

    def close(self) -> None:
        """Frees the instances; blocks for their threads, so it runs off the loop."""
        for instance in self.instances:
            instance.close()

    def release(self) -> None:
        """On the loop, before ``close``."""
        self._refusal = self._refusal or Unavailable(f"model '{self._name}' is being unloaded")
        if self._inline_again is not None:
            self._inline_again.cancel()
        self._closed = True
        if self._alarm is not None:
            self._alarm.close()
        if self._ahead is not None:
            self._ahead.close()
        self._alarm = self._ahead = None
