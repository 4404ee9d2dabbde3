"""The runner of a version that generates: requests in, responses out, on the loop's thread.

It refuses what cannot keep its deadlines, passes the rest to the engine that answers soonest, and holds responses of a
client that does not read: after a while its sequence pauses, later it is ended. An engine whose step does not end gets
no requests until it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from isochrone.clock import MILLISECOND, NEVER, SECOND, now_ns
from isochrone.errors import Cancelled, InvalidArgument, IsochroneError, ModelFailed, Unavailable
from isochrone.observe.snapshot import GenerationSnapshot, sum_histograms
from isochrone.worker.execution.failure_log import FailureLog
from isochrone.worker.generation.answers.job import Delivery, Job
from isochrone.worker.generation.engine import GenerationEngine
from isochrone.worker.generation.hangs import HangWatch, longest_step, step_limit
from isochrone.worker.generation.prompts import PromptThread, late_prompt
from isochrone.worker.generation.requests.requests import GenerationRequest, read_request
from isochrone.worker.generation.scheduling.admission import Candidate, EngineLoad, refusal
from isochrone.worker.generation.scheduling.sequence import Key

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.generation.settings import GenerationSettings
    from isochrone.worker.statistics import ModelStatistics

log = structlog.get_logger(__name__)

#: Reported as the wait where no engine is left that could answer: nobody knows how long.
UNKNOWN_WAIT_NS = 3600 * SECOND
#: Responses that a client has not made room for, after which its sequence pauses.
MAX_BACKLOG = 256
#: The longest tokens of common vocabularies are runs of 128 spaces. Longer prompts are refused and not tokenised, also
#: where a tokenizer would drop white space: reading it all would take as long as a prompt that does not fit. Of a chat,
#: the JSON counts, with its escapes.
_CHARACTERS_PER_TOKEN = 128
_BYTES_PER_TOKEN = 6 * _CHARACTERS_PER_TOKEN
#: Characters per token that are assumed before the first prompt, and the weight of a new one.
_ASSUMED = 4.0
_NEW = 0.05


class GenerationRunner:
    """Runs one version. Its engines are warm."""

    def __init__(
        self,
        name: str,
        engines: Sequence[GenerationEngine],
        settings: GenerationSettings,
        statistics: ModelStatistics,
        request_ended: Callable[[], None],
        set_ready: Callable[[bool], None],
    ) -> None:
        """``set_ready``: told whether any engine can answer, when that changes."""
        self._name = name
        self._settings = settings
        self._statistics = statistics
        self._request_ended = request_ended
        self._set_ready = set_ready
        self._failures = FailureLog(name, statistics.model_version)
        self._rejection: IsochroneError | None = None
        #: Those that take requests, and those that hang.
        self._engines = list(engines)
        self._hung: list[GenerationEngine] = []
        self._watches = {engine: HangWatch() for engine in engines}
        self._jobs: dict[Job, GenerationEngine] = {}
        #: Jobs that the picture of the engine's load does not show yet.
        self._unseen: dict[GenerationEngine, list[Job]] = {engine: [] for engine in engines}
        #: That picture, and the same with these jobs.
        self._loads: dict[GenerationEngine, tuple[EngineLoad, EngineLoad]] = {}
        self._prompts = PromptThread(f"{name}-prompts")
        self._characters_per_token = _ASSUMED
        self._mean_prompt = 1.0
        #: By error code: requests that were refused for their deadline or the queue's bound.
        self._refusals: dict[str, int] = {}
        loop = asyncio.get_running_loop()
        for engine in engines:
            engine.connect(loop, self._take)

    # The interface of a runner.

    def submit(self, request: InferRequest) -> None:
        """Passes a request to an engine, or raises."""
        if self._rejection is not None:
            raise self._rejection
        if any(engine.lost for engine in self._engines):
            self._drop_lost()
        if not self._engines:
            raise self._no_engine().not_begun()
        wanted = read_request(request, self._settings.defaults)
        self._check_size(wanted)
        now = now_ns()
        priority = request.plan.priority or self._settings.default_priority
        first_ns = wanted.parameters.first_token_ns
        first_deadline = min(request.deadline, request.arrived + first_ns if first_ns else NEVER)
        estimated = max(1, int(wanted.size / self._characters_per_token))
        inter_token_ns = wanted.parameters.inter_token_ns
        ready = now + self._prompts.expected_ns(wanted.size, priority, now)
        candidate = Candidate(estimated, priority, request.arrived, first_deadline, inter_token_ns, ready)
        engine, load = self._soonest(candidate, now)
        # The figure is a guess that the engine's scheduler replaces; only it can tell whether a prompt fits.
        capped = replace(candidate, prompt_tokens=min(estimated, load.limits.context_tokens - 1, _room(load)))
        error = refusal(load, capped, now, self._settings.rules.max_waiting)
        if error is not None:
            self._count_refusal(error)
            raise error.within(f"model '{self._name}'")
        job = Job(request, wanted, priority, estimated, first_deadline)
        self._jobs[job] = engine
        self._unseen[engine].append(job)
        shown, known = self._loads[engine]
        self._loads[engine] = shown, known.with_arrivals([_arrival(job)])
        self._prompts.submit(job, engine.executable.tokenizer, engine.prepared)

    @property
    def pending(self) -> int:
        """Sequences that wait for their first step."""
        now = now_ns()
        return sum(self._load(engine, now).waiting for engine in self._engines)

    def estimated_wait(self, now: int) -> int:
        """ns until the first token of a request with a prompt of the mean length."""
        candidate = self._next_request(round(self._mean_prompt), now, NEVER)
        if not self._engines:
            return UNKNOWN_WAIT_NS
        _, load = self._soonest(candidate, now)
        return load.first_token_at(candidate, now) - now

    def least_wait(self, now: int) -> int:
        """ns until the first token of a request with the shortest prompt that is due before all others of its priority:
        no other can have it sooner."""
        candidate = self._next_request(1, now, now)
        if not self._engines:
            return UNKNOWN_WAIT_NS
        _, load = self._soonest(candidate, now)
        return _as_admitted(load).first_token_at(candidate, now) - now

    def estimated_inter_token(self, now: int) -> int:
        """ns between tokens with one more request of the shortest prompt, where that would be answered soonest; 0: not
        known."""
        candidate = self._next_request(1, now, NEVER)
        if not self._engines:
            return 0
        _, load = self._soonest(candidate, now)
        return _as_admitted(load).inter_token_ns(candidate)

    def _next_request(self, tokens: int, now: int, first_deadline: int) -> Candidate:
        """A request of the default priority that would come now, with a prompt of so many tokens."""
        tokens, priority = max(1, tokens), self._settings.default_priority
        size = round(tokens * self._characters_per_token)
        # One that is due at once is tokenised before the others of its priority.
        ready = now + self._prompts.expected_ns(size, priority - (first_deadline == now), now)
        return Candidate(tokens, priority, now, first_deadline, ready=ready)

    def estimated_run(self) -> int:
        """Not known: nobody knows how long an answer will be."""
        return 0

    def least_run(self) -> int:
        return 0

    def steps_digest(self, stages: Mapping[str, str] | None) -> str:
        return ""

    def check_stuck(self, now: int) -> None:
        """Ends streams that nobody reads and engines that hang. Called about ten times a second."""
        for job in list(self._jobs):
            if job.request.cancelled:
                self._cancel(job, None)
            elif job.stalled_since and now - job.stalled_since >= self._settings.stalled_ns:
                stalled_ms = self._settings.stalled_ns // MILLISECOND
                self._cancel(job, Cancelled(f"the client has read nothing for stalled_stream_ms ({stalled_ms})"))
        for job in self._prompts.expired(now):
            error = late_prompt(job, now)
            self._count_refusal(error)
            self._cancel(job, error)
        self._drop_lost()
        for engine, watch in self._watches.items():
            began, limit_ns = engine.step_began, step_limit(engine.load, self._settings.execution_timeout_ns)
            hangs = watch.hangs(began, now, limit_ns)
            if hangs and engine in self._engines:
                self._abandon(engine, now - began)
            elif not hangs and engine in self._hung:
                self._restore(engine)
        for engine in {engine for job, engine in self._jobs.items() if job.is_paused}:
            # Deadlines pass without steps, too.
            engine.wake()

    def fail_all(self, error: IsochroneError | None = None) -> None:
        """Fails all requests: the version is being unloaded and does not wait longer."""
        error = self._rejection = error or Unavailable(f"model '{self._name}' is being unloaded")
        for job in list(self._jobs):
            self._cancel(job, error)
        for engine in self._engines:
            if engine.step_began:
                # Its step may never end: nobody waits for it.
                engine.is_abandoned = True

    def release(self) -> None:
        self._rejection = self._rejection or Unavailable(f"model '{self._name}' is being unloaded")

    def close(self) -> None:
        """Frees the engines. It waits for their threads, so it must not run on the loop."""
        self._prompts.close()
        for engine in self._unseen:
            engine.close()

    # Figures.

    @property
    def cache_utilization(self) -> float:
        """The share of the blocks of the cache that sequences hold."""
        blocks = sum(engine.load.limits.blocks for engine in self._engines)
        return sum(engine.load.blocks_in_use for engine in self._engines) / blocks if blocks else 0.0

    @property
    def token_capacity(self) -> int:
        """Tokens that the cache can hold."""
        limits = [engine.load.limits for engine in self._engines]
        return sum(each.blocks * each.block_tokens for each in limits)

    @property
    def hung_instances(self) -> int:
        """Engines whose step does not end."""
        return len(self._hung)

    def snapshot(self) -> GenerationSnapshot:
        """For the metrics page."""
        engines = list(self._unseen)
        counts = [engine.counts for engine in engines]
        loads = [engine.load for engine in engines]
        return GenerationSnapshot(
            self._statistics.model_name,
            self._statistics.model_version,
            generated_tokens=sum(each.generated_tokens for each in counts),
            prompt_tokens=sum(each.prompt_tokens for each in counts),
            reused_tokens=sum(engine.scheduler.reused_tokens for engine in engines),
            late_tokens=sum(each.late_tokens for each in counts),
            steps=sum(each.steps for each in counts),
            preemptions=sum(engine.scheduler.preemptions for engine in engines),
            refusals=dict(self._refusals),
            running=sum(load.running for load in loads),
            waiting=self.pending,
            blocks=sum(load.limits.blocks for load in loads),
            blocks_in_use=sum(load.blocks_in_use for load in loads),
            first_token=sum_histograms([each.first_token.snapshot() for each in counts]),
            between_tokens=sum_histograms([each.between_tokens.snapshot() for each in counts]),
        )

    def _count_refusal(self, error: IsochroneError) -> None:
        if error.code in ("deadline_exceeded", "queue_full"):
            self._refusals[error.code] = self._refusals.get(error.code, 0) + 1

    # Admission.

    def _check_size(self, wanted: GenerationRequest) -> None:
        context = max(engine.load.limits.context_tokens for engine in self._unseen)
        most = context * (_CHARACTERS_PER_TOKEN if wanted.text is not None else _BYTES_PER_TOKEN)
        if wanted.size > most:
            raise InvalidArgument(
                f"the prompt has {wanted.size} characters: expected fewer than {most}, since the model's context has "
                f"{context} tokens"
            )

    def _soonest(self, candidate: Candidate, now: int) -> tuple[GenerationEngine, EngineLoad]:
        """The engine that would answer first, and its load."""
        loads = [(engine, self._load(engine, now)) for engine in self._engines]
        if len(loads) == 1:
            return loads[0]
        return min(loads, key=lambda each: (each[1].first_token_at(candidate, now), each[1].running + each[1].waiting))

    def _load(self, engine: GenerationEngine, now: int) -> EngineLoad:
        """The load of an engine, with the requests that it does not show yet, and a step that takes too long."""
        shown = engine.load
        before, load = self._loads.get(engine, (None, shown))
        if before is not shown:
            unseen = self._unseen[engine] = [
                job for job in self._unseen[engine] if not job.is_known and not job.is_over
            ]
            load = shown.with_arrivals(map(_arrival, unseen)) if unseen else shown
            self._loads[engine] = shown, load
        ran = now - engine.step_began
        if engine.step_began and ran > longest_step(load) > 0:
            # Nobody knows when it ends; what has taken long will take long.
            load = replace(load, step_end=now + ran)
        return load

    # Responses.

    def _take(self, deliveries: Sequence[Delivery]) -> None:
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
            self._jobs[job].pause(job)

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
            self._jobs[job].resume(job)

    def _send(self, job: Job, delivery: Delivery) -> None:
        request = job.request
        if delivery.error is not None:
            if not job.is_admitted:
                self._count_refusal(delivery.error)
            self._fail(job, delivery.error)
        elif delivery.outputs is None:
            return
        elif not delivery.is_last:
            request.emit(delivery.outputs)
        else:
            self._succeed(job)
            request.finish_with(delivery.outputs)

    def _succeed(self, job: Job) -> None:
        request, sequence = job.request, job.sequence
        assert sequence is not None
        self._learn(job, sequence.prompt_tokens)
        request.dispatched = request.compute_start = request.infer_start = sequence.started_at
        request.infer_end = request.compute_end = job.ended_at
        self._statistics.record_batch(1, 0, request.infer_end - request.infer_start, 0)
        self._statistics.record_success(request, now_ns(), 1)
        self._over(job)
        # They refer to each other: without this, only the garbage collector would free them.
        job.sequence = None

    def _learn(self, job: Job, prompt_tokens: int) -> None:
        self._mean_prompt += _NEW * (prompt_tokens - self._mean_prompt)
        if job.wanted.size:
            self._characters_per_token += _NEW * (job.wanted.size / prompt_tokens - self._characters_per_token)

    def _fail(self, job: Job, error: IsochroneError) -> None:
        request = job.request
        self._failures.request_failed(error)
        self._statistics.record_failure(error.code, now_ns() - request.arrived)
        self._over(job)
        if request.cancelled:
            request.dropped()
        else:
            request.fail(error)

    def _cancel(self, job: Job, error: IsochroneError | None) -> None:
        """Ends a request from here: the engine frees what it has."""
        if job.is_over:
            # The end of another one, of the same call, has ended it.
            return
        self._prompts.cancel(job)
        self._jobs[job].cancel(job)
        self._fail(job, error or Cancelled("the request was cancelled"))

    def _over(self, job: Job) -> None:
        job.is_over = True
        job.backlog.clear()
        del self._jobs[job]
        self._request_ended()

    def _no_engine(self) -> IsochroneError:
        lost = next((engine.lost for engine in self._watches if engine.lost), "")
        if lost:
            return Unavailable(lost).within(f"model '{self._name}'")
        return Unavailable(
            f"model '{self._name}': no instance is left, since a step does not end: load the model again, or restart "
            "the worker"
        )

    def _drop_lost(self) -> None:
        """Engines that cannot compute any more get no requests, and those that they have fail."""
        lost = [engine for engine in self._engines if engine.lost]
        for engine in lost:
            self._engines.remove(engine)
            for job in [job for job, at in self._jobs.items() if at is engine]:
                # It may have ended some itself; then their errors are on their way.
                self._cancel(job, ModelFailed(engine.lost) if job.is_known else Unavailable(engine.lost).not_begun())
        if lost and not self._engines:
            self._set_ready(False)

    def _abandon(self, engine: GenerationEngine, ran_ns: int) -> None:
        """A step does not end: its thread cannot be stopped, so nothing waits for it any more."""
        engine.is_abandoned = True
        self._engines.remove(engine)
        self._hung.append(engine)
        ran_ms = ran_ns // MILLISECOND
        log.error(
            "a step does not end; its instance gets no requests until it does. If it never ends, load the model again "
            "(its memory stays taken), or restart the worker",
            model=self._name,
            instance=engine.name,
            ran_ms=ran_ms,
            instances_left=len(self._engines),
        )
        error = ModelFailed(f"model '{self._name}': a step of instance '{engine.name}' does not end, after {ran_ms} ms")
        for job in [job for job, at in self._jobs.items() if at is engine]:
            self._cancel(job, error)
        if not self._engines:
            self._set_ready(False)

    def _restore(self, engine: GenerationEngine) -> None:
        """The step has ended after all. The requests that it had are over, and the engine knows."""
        self._hung.remove(engine)
        if self._rejection is not None:
            return
        engine.is_abandoned = False
        if engine.lost:
            return
        log.warning("a step that seemed to hang has ended", model=self._name, instance=engine.name)
        self._engines.append(engine)
        self._set_ready(True)


def _arrival(job: Job) -> tuple[Key, int, int]:
    order = (job.priority, True, job.turn_deadline, 0)
    return order, job.estimated_tokens, job.wanted.parameters.inter_token_ns


def _as_admitted(load: EngineLoad) -> EngineLoad:
    """As admission counts: an engine without sequences has no margins."""
    return load if load.levels else replace(load, costs=load.costs.without_margins())


def _room(load: EngineLoad) -> int:
    return load.limits.blocks * load.limits.block_tokens
