"""The runner of ordinary models: it queues requests, takes batches from the queue and runs them on instances.

Runs on the loop's thread; instances compute on threads of their own. Requests of short models do not queue
(``inline_runner``), nor do those that nothing is before (``direct_runner``), and short batches run inline too: a thread
would cost 22 µs and a context switch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from isochrone.clock import NEVER, now_ns
from isochrone.errors import IsochroneError
from isochrone.worker.execution.batches.direct_runner import DirectRunner
from isochrone.worker.execution.batches.launch_ahead import LaunchAhead
from isochrone.worker.execution.batches.lookahead import LookAhead
from isochrone.worker.execution.inline.compute_stage import STAGE_NS
from isochrone.worker.execution.instances.batch import Batch
from isochrone.worker.execution.instances.instance import Instance
from isochrone.worker.execution.instances.replacement import MakeInstance
from isochrone.worker.execution.instances.resource_gate import ResourceGate
from isochrone.worker.scheduling.alarm import Alarm
from isochrone.worker.scheduling.batch_queue import TURN_RUNS
from isochrone.worker.scheduling.latency_curve import RunningTime

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.backends.interface import PostingOutlet
    from isochrone.worker.execution.runner_context import RunnerContext


class BatchRunner(DirectRunner):
    """Runs one version of a stateless model that gives each request one answer."""

    def __init__(self, context: RunnerContext, gate: ResourceGate | None = None) -> None:
        super().__init__(context)
        #: Where instances acquire resources before they run; None: they need none.
        self._gate = gate
        self._alarm: Alarm | None = None
        self._ahead: LookAhead | LaunchAhead | None = None
        #: The requests that came since the last look go behind what is offered, and cannot join it.
        self._offer_holds = True
        #: Time of the loop's thread that went into queueing requests which have not run yet.
        self._queueing = 0
        #: Time from the end of a batch to the last of its answers.
        self._answering = RunningTime()
        #: Rejections and runs at the last call of ``check_stuck``.
        self._rejections_seen = self._runs_seen = 0

    def start(self, instances: list[Instance], replacement: MakeInstance) -> None:
        super().start(instances, replacement)
        if self._rules.delay_ns:
            self._alarm = Alarm(self._loop, self._pump)
        if self._gate is not None:
            # Every run must acquire its resources first: no inline runs, and no look-ahead.
            for instance in instances:
                self._gate.add(instance, self._pump)
            return
        executable = instances[0].executable
        self._allow_direct_starts()
        if executable.inline_allowed:
            self._inline_runs.begin(self.curve, only_computes=executable.only_computes)
        if any(instance.executable.overlaps for instance in instances):
            self._ahead = LaunchAhead(self.queue, self.curve, self.instances, self._loop, self._update_busy)
        else:
            self._ahead = LookAhead(self.queue, self.curve, self.instances, self._loop)

    def submit(self, request: InferRequest) -> None:
        """Queues or runs a request, or raises."""
        if self._rejection is not None:
            raise self._rejection
        if self._order is not None:
            self._order.join(request)
        elif self._join_stage(request) or self._started_directly(request):
            return
        self._enqueue(request)

    def _enqueue(self, request: InferRequest) -> None:
        """Queues a request, or raises."""
        self._note_busy()
        now = now_ns()
        try:
            self.queue.push(request, now)
        except IsochroneError:
            self._rejections += 1
            if self._order is not None:
                self._order.leave(request)
            raise
        self._queueing += now_ns() - now
        if request.deadline != NEVER or self._rules.max_rows > 1 or self._rules.levels > 1:
            self._offer_holds = False
        # At the end of this loop turn: requests that arrive in the same turn can share a batch.
        self._schedule_pump()

    def _scheduled_pump(self) -> None:
        self._pump_scheduled = False
        if self._first is not None:
            self._start_first()
        self._pump()
        if self._ahead is not None and not self._idle and not (self._offer_holds and self._ahead.is_made):
            self._ahead.refresh()
        self._offer_holds = True

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
            batch = Batch(requests, rows)
            batch.expected = expected
            if 0 < (self._inline_runs.typical[rows] or expected) <= self._inline_limit(requests[0]):
                self._run_inline(batch, now)
                inline += 1
                if (inline >= TURN_RUNS or now_ns() - begun > STAGE_NS) and queue.pending:
                    self._schedule_pump()
                    break
            else:
                instance = self._idle.pop()
                instance.start(batch, expected)
                self._update_busy()
                self._queueing = 0
        if queue.rejected:
            self._fail_rejected()

    # Runs and answers.

    def _run_inline(self, batch: Batch, taken: int) -> None:
        """``taken``: when it was taken from the queue."""
        self._run_batch(batch)
        self._settle_inline(batch)
        if len(batch.requests) > 1 and batch.error is None and batch.retried is None:
            spent = self._last_answer - taken + self._queueing
            self._gathering.ran_together(len(batch.requests), spent)
        self._queueing = 0

    def _finished(self, instance: Instance, batch: Batch) -> None:
        """A batch has ended on its thread."""
        if instance.abandoned:
            # Its requests were answered when it was abandoned.
            self._replacements.ended(instance)
            return
        if self._ahead is not None:
            self._ahead.withdraw()
            self._ahead.observe(batch)
        instance.ended(batch)
        batch.instance = instance.number
        if not batch.errors and batch.error is None and batch.retried is None and batch.requests:
            self._inline_runs.ran_on_thread(batch.rows, batch.compute_end - batch.compute_start)
        if instance.running is None:
            self._idle.append(instance)
        if self.queue.pending:
            self._update_busy()
        else:
            self._busy_changed = True
        if self._gate is not None:
            # The gate calls the runner whose turn it is, of this model or another, in the next turn of the loop.
            self._gate.exit(instance, again=bool(self.queue.pending))
        # The next batch first: the instance computes while the loop writes answers.
        elif self._line:
            self._serve_line()
        elif self.queue.pending:
            self._pump()
            if self._ahead is not None:
                self._ahead.refresh()
        self._settle(batch)
        if batch.was_polled:
            # Otherwise they would be written in the next turn of the loop, together with those of other batches: but
            # where many end, none is polled for.
            self._stage.flush()
            self._answered(batch.compute_end)
        elif not self._starts_at_once or not self._runs & 7:
            # Called after the answers were written: ``_settle`` only schedules that.
            self._loop.call_soon(self._answered, batch.compute_end)

    def _answered(self, finished: int) -> None:
        self._answering.observe(now_ns() - finished)
        self.queue.reserve_for_answering(self._answering.cautious)

    def outlet_of(self, request: InferRequest) -> PostingOutlet:
        return self._answers.late.outlet_of(request)

    @property
    def finished(self) -> Callable[[Instance, Batch], None]:
        """The callback of instances."""
        return self._finished

    # Hung runs and unload.

    def check_stuck(self, now: int) -> None:
        """Rejects late requests and abandons runs that exceed their limit. Called about ten times a second."""
        self._inline_runs.retry(now)
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
        for request in self._answers.late.overdue(now, limit_ns):
            self._answers.late.forget(request)
            self._fail(request, self._took_too_long("its answer never came"))
        for instance in list(self.instances):
            batch = instance.running
            if batch is None or now - instance.busy_since < limit_ns:
                continue
            if self._ahead is not None:
                self._ahead.withdraw()
            following = instance.following
            if following is not None and not instance.executable.overlaps:
                continue  # the run has ended; its callback is scheduled
            instance.stop_polling()
            instance.running = instance.following = None
            self._replace(instance)
            error = self._took_too_long("the instance was abandoned and is replaced")
            for request in [*batch.all_requests(), *(following.all_requests() if following is not None else ())]:
                self._answers.late.forget(request)
                self._fail(request, error)

    def fail_all(self, error: IsochroneError | None = None) -> None:
        """Fails queued and running requests: the version is being unloaded and does not wait longer."""
        error = self._rejection = error or self._unloading()
        if self._ahead is not None:
            self._ahead.withdraw()
        for request in (*self.queue.clear(), *self._answers.late.clear(), *self._take_unqueued()):
            self._fail(request, error)
        for instance in self.instances:
            if instance.running is not None:
                instance.stop_polling()
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
        self._serve_line()
        if self._rejection is not None:
            for request in self._take_unqueued():
                self._fail(request, self._rejection)

    def release(self) -> None:
        super().release()
        self._inline_runs.close()
        if self._gate is not None:
            self._gate.close()
        if self._alarm is not None:
            self._alarm.close()
        if self._ahead is not None:
            self._ahead.close()
        self._alarm = self._ahead = None
