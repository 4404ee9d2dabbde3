"""The requests under way of a version that generates, from admission to their ends. Runs on the loop's thread.

It sends the responses that engines deliver, and holds those of a client that does not read: after a while its sequence
pauses, later it is ended. Every request ends here, once: answered, failed or cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from isochrone.clock import MILLISECOND, now_ns
from isochrone.errors import Cancelled, IsochroneError
from isochrone.worker.execution.failure_log import FailureLog
from isochrone.worker.generation.answers.job import Delivery, Job
from isochrone.worker.generation.answers.traced_steps import TracedSteps
from isochrone.worker.generation.prompts import PromptThread, late_prompt

if TYPE_CHECKING:
    from isochrone.worker.generation.engine import GenerationEngine
    from isochrone.worker.generation.prompt_sizes import PromptSizes
    from isochrone.worker.generation.refusals import RefusalCounts
    from isochrone.worker.statistics import ModelStatistics

#: Responses that a client has not made room for, after which its sequence pauses.
MAX_BACKLOG = 256


class JobsUnderWay:
    """The jobs of one version, each with its engine."""

    def __init__(
        self,
        name: str,
        statistics: ModelStatistics,
        request_ended: Callable[[], None],
        prompts: PromptThread,
        sizes: PromptSizes,
        refusals: RefusalCounts,
    ) -> None:
        self._statistics = statistics
        self._request_ended = request_ended
        self._prompts = prompts
        self._sizes = sizes
        self._refusals = refusals
        self._failures = FailureLog(name, statistics.model_version)
        self._engines: dict[Job, GenerationEngine] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(self._engines)

    def begin(self, job: Job, engine: GenerationEngine) -> None:
        self._engines[job] = engine
        if self._statistics.trace is not None:
            job.steps = TracedSteps()
            engine.notes_steps = True

    # Responses.

    def take(self, deliveries: Sequence[Delivery]) -> None:
        """The responses of a step, from its engine."""
        now = now_ns()
        for delivery in deliveries:
            job = delivery.job
            if job.is_over:
                continue
            if job.request.cancelled:
                self._cancel(job, None)
            elif job.backlog or job.request.is_congested:
                self._hold(job, delivery, now)
            else:
                self._send(job, delivery)

    def _hold(self, job: Job, delivery: Delivery, now: int) -> None:
        """Keeps a response until the client has read earlier ones."""
        job.backlog.append(delivery)
        if not job.stalled_since:
            job.stalled_since = now
            job.request.when_writable(lambda: self._flush(job))
        if len(job.backlog) >= MAX_BACKLOG and not job.is_paused:
            job.is_paused = True
            self._engines[job].pause(job)

    def _flush(self, job: Job) -> None:
        """The client has read, or has gone."""
        job.stalled_since = 0
        if job.is_over:
            return
        if job.request.cancelled:
            self._cancel(job, None)
            return
        while job.backlog and not job.is_over:
            if job.request.is_congested:
                job.stalled_since = now_ns()
                job.request.when_writable(lambda: self._flush(job))
                return
            self._send(job, job.backlog.popleft())
        if job.is_paused and not job.is_over:
            job.is_paused = False
            self._engines[job].resume(job)

    def _send(self, job: Job, delivery: Delivery) -> None:
        request = job.request
        if delivery.error is not None:
            if not job.is_admitted:
                self._refusals.count(delivery.error)
            self._fail(job, delivery.error)
        elif delivery.outputs is None:
            return
        elif not delivery.is_last:
            request.emit(delivery.outputs)
        else:
            self._succeed(job)
            request.finish_with(delivery.outputs)

    # Requests that end before their answers do.

    def cancel_unread(self, now: int, stalled_ns: int) -> None:
        """Ends the streams whose clients have gone, or have read nothing for so long."""
        for job in list(self._engines):
            if job.request.cancelled:
                self._cancel(job, None)
            elif job.stalled_since and now - job.stalled_since >= stalled_ns:
                stalled_ms = stalled_ns // MILLISECOND
                self._cancel(job, Cancelled(f"the client has read nothing for stalled_stream_ms ({stalled_ms})"))

    def cancel_late_prompts(self, now: int) -> None:
        """Ends the requests whose first tokens were due before their prompts are tokenised."""
        for job in self._prompts.expired(now):
            error = late_prompt(job, now)
            self._refusals.count(error)
            self._cancel(job, error)

    def cancel_all(self, error: IsochroneError) -> None:
        for job in list(self._engines):
            self._cancel(job, error)

    def cancel_those_of(self, engine: GenerationEngine, error_of: Callable[[Job], IsochroneError]) -> None:
        """Ends the requests of an engine that does not answer them any more, each with its error."""
        for job in [job for job, at in self._engines.items() if at is engine]:
            self._cancel(job, error_of(job))

    def wake_paused(self) -> None:
        """Has the engines of paused sequences look for late ones: deadlines pass without steps, too."""
        for engine in {engine for job, engine in self._engines.items() if job.is_paused}:
            engine.wake()

    def _cancel(self, job: Job, error: IsochroneError | None) -> None:
        """Ends a request from here: the engine frees what it has."""
        if job.is_over:
            # The end of another one, of the same call, has ended it.
            return
        self._prompts.cancel(job)
        self._engines[job].cancel(job)
        self._fail(job, error or Cancelled("the request was cancelled"))

    # Ends.

    def _succeed(self, job: Job) -> None:
        request, sequence = job.request, job.sequence
        assert sequence is not None
        self._sizes.learn(job.wanted.size, sequence.prompt_tokens)
        request.dispatched = request.compute_start = request.infer_start = sequence.started_at
        request.infer_end = request.compute_end = job.ended_at
        self._statistics.record_batch(1, 0, request.infer_end - request.infer_start, 0)
        trace = self._statistics.trace
        if trace is not None and job.steps is not None:
            trace.steps = job.steps.entries
        self._statistics.record_success(request, now_ns(), 1)
        if trace is not None:
            trace.steps = None
        self._over(job)
        # They refer to each other: without this, only the garbage collector would free them.
        job.sequence = None

    def _fail(self, job: Job, error: IsochroneError) -> None:
        request = job.request
        self._failures.request_failed(error)
        self._statistics.record_failure(error.code, now_ns() - request.arrived)
        trace = self._statistics.trace
        if trace is not None and job.steps is not None:
            # The engine may be adding to it.
            trace.steps = list(job.steps.entries)
        self._statistics.trace_failure(request, error)
        if trace is not None:
            trace.steps = None
        self._over(job)
        if request.cancelled:
            request.dropped()
        else:
            request.fail(error)

    def _over(self, job: Job) -> None:
        job.is_over = True
        job.backlog.clear()
        del self._engines[job]
        self._request_ended()
