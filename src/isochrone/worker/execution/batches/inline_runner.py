"""The part of ``BatchRunner`` that runs requests on the loop's thread, in the compute stage of their turn.

A request that finds an idle instance and a short model does not queue: it joins the stage, where requests of the turn
run one after the other, or as a batch if ``gathering`` has measured that a batch of that size is cheaper.
``inline_runs`` says which runs are short.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import structlog

from isochrone.clock import MICROSECOND, NEVER, now_ns
from isochrone.errors import Cancelled, Internal, IsochroneError
from isochrone.worker.execution.batches.batch_answers import BatchAnswers
from isochrone.worker.execution.inline.compute_stage import STAGE_NS
from isochrone.worker.execution.inline.inline_runs import INLINE_NS, OVERRUN_NS, InlineRuns
from isochrone.worker.execution.inline.watchdog import InlineHang
from isochrone.worker.execution.instances.batch import Batch, answer, as_model_error
from isochrone.worker.execution.queued_runner import QueuedRunner
from isochrone.worker.scheduling.batch_queue import would_miss
from isochrone.worker.scheduling.gathering import Gathering

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.backends.interface import Executable
    from isochrone.worker.execution.runner_context import RunnerContext

#: A request that arrives this soon after an answer was there before it: no caller answers an answer in that time.
_BURST_NS = 25 * MICROSECOND
#: Requests join a stage that is expected to take no longer than this; others queue, which costs a small model half of
#: its rate.
_FULL_NS = 16 * STAGE_NS
#: After this many requests in a row that came when nothing was going on, requests come one at a time.
_QUIET_REQUESTS = 4


log = structlog.get_logger(__name__)

#: What ``compute`` found: of each request its outputs, an error, or None if it was queued; or a batch that has run.
Results = list["Tensors | IsochroneError | None"] | Batch


class InlineRunner(QueuedRunner):
    """Runs requests of one model version inline; those that cannot, it queues."""

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self._watchdog = context.watchdog
        self._stage = context.stage
        rules = context.rules
        #: Requests of one turn share a batch without a queue: there is nothing to wait for, to sort or to size.
        self._batches_in_stage = rules.max_rows > 1 and rules.levels == 1 and not (rules.delay_ns or rules.preferred)
        self._answers = BatchAnswers(
            self._loop,
            context.statistics,
            self._failures,
            context.request_ended,
            self._send_failure,
            preserve_ordering=context.preserve_ordering,
        )
        self._inline_runs = InlineRuns(context.name, self._loop, context.curve.max_rows, context.watchdog)
        self._gathering = Gathering()
        self._runs = 0
        #: When the last answer was written.
        self._last_answer = 0
        #: Consecutive requests that came when nothing was going on.
        self._quiet = 0
        self._rejections = 0

    @abstractmethod
    def _enqueue(self, request: InferRequest) -> None:
        """Queues a request, or raises."""

    @abstractmethod
    def _answered(self, finished: int) -> None:
        """The answers of a batch that ended then are written."""

    @property
    def pending(self) -> int:
        return super().pending + self._stage.waiting(self)

    def estimated_wait(self, now: int) -> int:
        return super().estimated_wait(now) + self._stage.expected_ns

    def _join_stage(self, request: InferRequest) -> bool:
        """Has a request run in the stage of this turn, if nothing speaks against it."""
        limit = self._inline_runs.limit_ns
        if not limit or self.queue.requests or not self._idle or not self._may_be_staged(request):
            self._quiet = 0
            return False
        rows = request.plan.batch_size
        expected = self._inline_runs.typical[rows] or self.curve.estimate(rows)
        if not 0 < expected <= limit and not self._delays_nobody(request, expected):
            return False
        request.enqueued = now_ns()
        self._stage.add(self, request, expected)
        return True

    def _may_be_staged(self, request: InferRequest) -> bool:
        """Whether a request may run in the stage of its turn. Batches that wait and long stages are the queue's: it
        sorts, limits and rejects."""
        rules = self._rules
        if rules.max_rows > 1 and rules.delay_ns:
            return False
        waiting = self._stage.expected_ns
        if not waiting:
            return True
        if waiting > _FULL_NS or rules.levels > 1:
            return False
        return request.deadline == NEVER or now_ns() + waiting + self.queue.margin_ns < request.deadline

    def _delays_nobody(self, request: InferRequest, expected: int) -> bool:
        """Whether a longer run on the loop's thread would delay nobody.

        Either requests come one at a time, or only this model is requested, it has one instance, for which the others
        would wait anyway, and they need no decision: the queue must see a request with a deadline when it comes.
        """
        if not 0 < expected <= self._inline_runs.long_ns:
            return False
        if self._watchdog.is_shared(request.arrived):
            self._quiet = 0
            return False
        if expected <= self._inline_runs.concurrent_ns and self._needs_no_decision(request):
            # Otherwise the request is queued, and sockets get their turn.
            return self._stage.expected_ns < STAGE_NS
        if self._stage.waiting(self) or request.arrived - self._last_answer < _BURST_NS:
            self._quiet = 0
            return False
        self._quiet += 1
        return self._quiet > _QUIET_REQUESTS

    def _inline_limit(self, first: InferRequest) -> int:
        """The longest batch that may run on the loop's thread; ``first``: the request that runs first in it."""
        limit = self._inline_runs.limit_ns
        if limit and self._needs_no_decision(first) and not self._watchdog.is_shared(first.arrived):
            return max(limit, self._inline_runs.concurrent_ns)
        return limit

    def _needs_no_decision(self, request: InferRequest) -> bool:
        """Whether there is nothing to choose for it: neither when it runs nor where."""
        return request.deadline == NEVER and self._rules.levels == 1 and len(self.instances) == 1

    # In the stage.

    def compute(self, requests: list[InferRequest], until: int) -> tuple[int, Results]:
        """Runs requests of one turn inline, as a batch or one after the other: their number, and their results."""
        many = len(requests)
        if many > 1 and self._rules.max_rows > 1 and self._idle and self._rejection is None:
            size = min(many, self._rules.max_rows)
            if self._gathering.pays(size, requests[0].arrived):
                if not self._batches_in_stage:
                    return many, self._enqueue_all(requests)
                found = self._compute_together(requests)
                if found is not None:
                    return found
        results: list[Tensors | IsochroneError | None] = []
        for request in requests:
            results.append(self._compute(request))
            if request.compute_end > until:
                break
        return len(results), results

    def _compute_together(self, requests: list[InferRequest]) -> tuple[int, Results] | None:
        """Runs the first requests as a batch, or queues all for a batch on the thread; None: no batch pays."""
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
        expected = self._inline_runs.typical[rows] or self.curve.estimate(rows)
        if not 0 < expected <= self._inline_limit(first):
            if not self._gathering.would_pay(count, expected) or self._saves_nothing(count, expected):
                return None
            return len(requests), self._enqueue_all(requests)
        batch = Batch(requests[:count], rows)
        for request in batch.requests:
            request.dispatched = taken
        self._run_batch(batch)
        return count, batch

    def _saves_nothing(self, requests: int, expected: int) -> bool:
        """Whether a batch on a thread would save nothing: code that holds the interpreter's lock there as well, and is
        not faster for being given several requests."""
        if not self._idle[-1].executable.takes_requests:
            return False
        alone = self._inline_runs.typical[1]
        return 0 < alone <= INLINE_NS and expected * 5 > alone * 4 * requests

    def _enqueue_all(self, requests: list[InferRequest]) -> list[Tensors | IsochroneError | None]:
        return [self._enqueued(request) for request in requests]

    def _enqueued(self, request: InferRequest) -> IsochroneError | None:
        """Queues a request; the error: it was not possible."""
        try:
            self._enqueue(request)
        except IsochroneError as error:
            return error
        return None

    def _compute(self, request: InferRequest) -> Tensors | IsochroneError | None:
        """Runs one request inline: like a batch, without a ``Batch``. None: it was queued."""
        # Something may have changed since it was put into the stage.
        if self._rejection is not None or request.cancelled:
            return self._rejection or Cancelled("the caller has gone")
        if not self._idle or not self._inline_runs.limit_ns:
            return self._enqueued(request)
        if request.deadline != NEVER:
            miss = now_ns() + self.curve.estimate(request.plan.batch_size) + self.queue.margin_ns - request.deadline
            if miss > 0:
                self._rejections += 1
                return would_miss(request, miss)
        watchdog = self._watchdog
        watchdog.since = started = now_ns()
        executable = self._idle[-1].executable
        if executable.takes_requests:
            return self._compute_request(executable, request, started)
        try:
            outputs = executable.execute(request.inputs, request.plan.outputs)
        except BaseException as error:
            watchdog.since = 0
            request.compute_end = now_ns()
            if isinstance(error, InlineHang) or isinstance(error.__cause__, InlineHang):
                self._inline_runs.forbid()
            return as_model_error(error, request)
        watchdog.since = 0
        request.dispatched = request.compute_start = request.infer_start = started
        request.infer_end = request.compute_end = now_ns()
        return outputs

    def _compute_request(
        self, executable: Executable, request: InferRequest, started: int
    ) -> Tensors | IsochroneError | None:
        """The same, for an executable that takes requests. None: it will answer by itself."""
        answer = executable.execute_requests((request,))[0]
        self._watchdog.since = 0
        request.dispatched = request.compute_start = request.infer_start = started
        request.infer_end = request.compute_end = now_ns()
        if answer is None:
            self._answers.late.expect(request)
        elif isinstance(answer, IsochroneError) and isinstance(answer.__cause__, InlineHang):
            self._inline_runs.forbid()
        return answer

    def finish(self, requests: list[InferRequest], results: Results) -> None:
        """Answers requests that ``compute`` has run."""
        if isinstance(results, Batch):
            begun = now_ns()
            self._settle_inline(results)
            if results.error is None and results.retried is None:
                spent = results.compute_end - results.compute_start + self._last_answer - begun
                self._gathering.ran_together(len(requests), spent)
            return
        for request, outcome in zip(requests, results, strict=True):
            if outcome is None:
                continue
            if isinstance(outcome, IsochroneError):
                self._finish_failed(request, outcome)
            else:
                self._finish(request, outcome)

    def give_up(self, requests: list[InferRequest], error: Exception) -> None:
        """Answers requests whose ``compute`` raised."""
        for request in requests:
            self._finish_failed(request, Internal(f"{type(error).__name__}: {error}"))

    def _finish_failed(self, request: InferRequest, error: IsochroneError) -> None:
        try:
            if request.compute_end or isinstance(error, Cancelled):
                self._fail(request, error)
                return
            # Nothing has run, as if it had been rejected on arrival.
            self._statistics.record_rejected(error.code)
            self._statistics.trace_failure(request, error)
            self._request_ended()
            if request.cancelled:
                request.dropped()
            else:
                request.fail(error)
        except Exception as raised:
            log.error("an error could not be written", model=self._name, exc_info=raised)

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
        if not self._runs & 7 or rows in self._inline_runs.retrying:
            self._inline_runs.observe(rows, elapsed, ended)
            self.curve.observe(rows, elapsed)
            self._answered(ended)
            if self._rules.max_rows > 1:
                self._gathering.ran_alone(elapsed + self._last_answer - begun)
        if elapsed > OVERRUN_NS:
            self._inline_runs.overran(rows, elapsed, ended, self._runs)

    # Batches.

    def _settle(self, batch: Batch) -> None:
        """Learns from a batch that has run, and answers its callers."""
        has_answers = batch.error is None and bool(batch.requests)
        if has_answers and not batch.errors:
            elapsed = batch.occupied or batch.compute_end - batch.compute_start
            self._runs += 1
            # A retried batch says nothing about the time of one run.
            if batch.retried is None and (not self._runs & 7 or elapsed > INLINE_NS):
                self.curve.observe(batch.rows, elapsed)
            self._statistics.record_batch(
                batch.rows,
                batch.infer_start - batch.compute_start,
                batch.infer_end - batch.infer_start,
                batch.compute_end - batch.infer_end,
            )
            self._statistics.note_batch(
                batch.compute_start,
                batch.rows,
                len(batch.requests),
                batch.expected,
                self.queue.requests,
                batch.instance,
            )
        self._answers.settle(batch)
        if has_answers:
            self._last_answer = now_ns()

    def _fail(self, request: InferRequest, error: IsochroneError) -> None:
        self._answers.fail(request, error)

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
            self._inline_runs.forbid()
        elif elapsed > OVERRUN_NS:
            self._inline_runs.overran(batch.rows, elapsed, batch.compute_end, self._runs)
        self._settle(batch)
        if not self._runs & 7:
            self._answered(batch.compute_end)
        if not self._runs & 7 or batch.rows in self._inline_runs.retrying:
            self._inline_runs.observe(batch.rows, elapsed, batch.compute_end)
