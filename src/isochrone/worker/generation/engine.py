"""The engine of one instance: a thread that owns the model and runs it step by step.

Each turn schedules a step, launches it, turns the tokens of the step before into text while the device works, and then
collects. Where the model can (``launches_ahead``), the next step is launched before one is collected, so that the
device never waits for this thread: what ends a sequence is then noticed a step late, and the token after it is dropped.
Where the launch itself computes, tokens become text at once. Responses of a step go to the loop's thread by one call.
The engine is at most two steps ahead of the loop: where the loop is slower than the device, steps take as long as the
loop needs for their responses, so that admission counts it and no token waits unseen. It also counts by how much the
time varies that tokens take from the end of their step to the connections.
Cancelled requests leave before the next step is launched. An engine without work waits for its inbox. A step that fails
costs its own sequences, not the engine; a row that fails costs its own sequence.
"""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import structlog

from isochrone.clock import MILLISECOND, now_ns
from isochrone.devices.loads import loading
from isochrone.errors import Cancelled, IsochroneError, ModelFailed, Unavailable
from isochrone.worker.backends.devices.failed_frames import forget_frames
from isochrone.worker.backends.generative import FailedRow, GenerativeExecutable
from isochrone.worker.backends.interface import DeviceLost
from isochrone.worker.generation.answers.job import Delivery, Job
from isochrone.worker.generation.calibration import calibrate
from isochrone.worker.generation.counts import EngineCounts
from isochrone.worker.generation.scheduling.admission import EngineLoad
from isochrone.worker.generation.scheduling.scheduler import SchedulerRules, StepScheduler, late_error
from isochrone.worker.generation.scheduling.sequence import TokenSequence
from isochrone.worker.generation.scheduling.steps import Output, Step

log = structlog.get_logger(__name__)

#: The picture of the load that the loop sees is at most this old while steps run.
_LOAD_NS = 5 * MILLISECOND
#: While steps run, so long between two of them goes into what comes in: each prompt takes a part of a millisecond.
_INBOX_NS = MILLISECOND
#: Calls of the loop that may be under way. With one, the device would wait for the loop.
_MOST_CALLS = 2

Deliver = Callable[[Sequence[Delivery]], None]


class GenerationEngine:
    """One instance."""

    def __init__(
        self, executable: GenerativeExecutable, name: str, rules: SchedulerRules, cpus: tuple[int, ...] = ()
    ) -> None:
        self.executable = executable
        self.name = name
        self.counts = EngineCounts()
        self.scheduler = StepScheduler(executable.limits, rules)
        #: A picture for the loop's thread; it is replaced, never changed.
        self.load: EngineLoad = self.scheduler.load(0)
        #: Some requests are traced: their steps are noted. The loop sets it, once.
        self.notes_steps = False
        #: When the running step began; 0: none does.
        self.step_began = 0
        #: Why the engine cannot compute any more; "": it can. The engine's thread sets it, once.
        self.lost = ""
        #: Of the loop's thread: a step took too long, and nobody waits for it any more.
        self.is_abandoned = False
        self._cpus = cpus
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._own_thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Deliver
        #: ``close`` was called; and the engine's thread has taken note of it.
        self._is_closed = self._is_closing = False
        self._load_until = 0
        self._deliveries: list[Delivery] = []
        #: When the oldest undelivered tokens of streams were collected; 0: there are none.
        self._tokens_since = 0
        #: Calls of the loop that are not known to have ended, and for each that has, how long its tokens took; 0: none.
        self._calls = 0
        self._ended_calls: SimpleQueue[int] = SimpleQueue()
        #: The end of the latest step that was collected.
        self._collected = 0
        #: Sequences that ended by their text while a step with them ran.
        self._stopped: list[TokenSequence] = []
        #: Steps that are launched and not collected, and when they were launched.
        self._in_flight: deque[tuple[Step, int]] = deque()
        #: When these are expected to end; 0: there are none.
        self._step_end = 0

    # From the thread that loads the model.

    def warm(self) -> None:
        """Starts the thread and warms the model on it. It waits; raises what the model raises."""
        done = threading.Event()
        failures: list[BaseException] = []

        def warm() -> None:
            try:
                with loading():
                    self.executable.warm_steps()
                calibrate(self.executable, self.scheduler.times)
                self.load = self.scheduler.load(0)
            except BaseException as error:
                # They hold the model, whose memory is needed.
                forget_frames(error)
                failures.append(error)
            done.set()

        self._own_thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
        self._own_thread.start()
        self._inbox.put(warm)
        done.wait()
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Ends the thread and frees the model. It waits for the step that runs, unless the engine is abandoned."""
        self._inbox.put(self._close)
        # The loop may have stopped before the call that the engine waits for.
        self._is_closed = True
        self._ended_calls.put(0)
        if self.is_abandoned:
            return
        if self._own_thread is not None:
            self._own_thread.join()
        self._free()

    def _free(self) -> None:
        try:
            self.executable.close()
        except Exception as error:
            log.warning("an instance failed to close", instance=self.name, error=str(error))

    # From the loop's thread.

    def connect(self, loop: asyncio.AbstractEventLoop, deliver: Deliver) -> None:
        """``deliver`` gets the responses of each step, on the loop's thread."""
        self._loop, self._deliver = loop, deliver

    def cancel(self, job: Job) -> None:
        """Frees what a request has, after the step that runs."""
        self._inbox.put(partial(self._cancel, job))

    def pause(self, job: Job) -> None:
        self._inbox.put(partial(self._set_paused, job, True))

    def resume(self, job: Job) -> None:
        self._inbox.put(partial(self._set_paused, job, False))

    def wake(self) -> None:
        """Has an idle engine look for cancelled and late sequences."""
        self._inbox.put(_nothing)

    # From the thread of prompts.

    def prepared(self, job: Job, prompt: tuple[str, list[int]] | IsochroneError) -> None:
        """The prompt of a request has become tokens, or cannot."""
        self._inbox.put(partial(self._admit, job, prompt))

    # On the engine's thread.

    def _serve(self) -> None:
        self._pin()
        try:
            self._run_steps()
        except BaseException as error:
            # Not of the model, whose errors cost a step: nobody knows what state this is in.
            log.error("an instance fails", instance=self.name, exc_info=error)
            self._fail_all(f"its engine failed: {type(error).__name__}: {error}; load the model again")
            forget_frames(error)
            self._send()
            while not self._is_closing:
                self._inbox.get()()
                self._send()
        if self.is_abandoned:
            self._free()

    def _run_steps(self) -> None:
        outputs: list[Output] = []
        is_idle = True
        model, in_flight = self.executable, self._in_flight
        most = 2 if model.launches_ahead else 1
        #: The end of the step before: where another follows at once, the time between tokens is all that lies between,
        #: the wait for the loop included. 0: none follows.
        ended = 0
        while not self._is_closing:
            self._take_inbox(is_idle)
            if is_idle:
                ended = 0
            now = now_ns()
            self._drop_ended(now)
            step = self.scheduler.schedule(now)
            failure = self._launch(step, now) if step.rows else None
            self._process(outputs)
            outputs = []
            if failure is not None:
                self._fail(step, failure)
            elif step.rows:
                in_flight.append((step, now))
            self._publish(now, bool(in_flight))
            self._send()
            is_idle = not in_flight
            if in_flight and (len(in_flight) == most or not step.rows):
                oldest, launched = in_flight.popleft()
                outputs = self._collect(oldest, ended or launched)
                ended = now_ns()
                if in_flight or not model.computes_alone:
                    # The device is busy; or the next launch takes as long as its step, and tokens would wait for it.
                    self._process(outputs)
                    self._send()
                    outputs = []
            self._step_end = max(now, ended) + self._expected_ns() if in_flight else 0

    def _take_inbox(self, waits: bool) -> None:
        if waits:
            self._inbox.get()()
        until = now_ns() + _INBOX_NS
        try:
            while now_ns() < until or not self._in_flight:
                self._inbox.get_nowait()()
        except Empty:
            pass

    def _drop_ended(self, now: int) -> None:
        """Takes out the sequences that need no further step."""
        scheduler = self.scheduler
        for sequence in self._stopped:
            scheduler.ended(sequence)
        self._stopped.clear()
        jobs: list[Job] = [each.job for each in scheduler.sequences()]  # type: ignore[misc]
        for cancelled in [job for job in jobs if job.request.cancelled]:
            self._cancel(cancelled)
        for sequence in scheduler.remove_late(now):
            self._end(_job(sequence), late_error(sequence, now))

    def _launch(self, step: Step, now: int) -> IsochroneError | None:
        try:
            self.step_began = self.step_began or now
            self.executable.launch(step.rows)
        except BaseException as error:
            return self._step_error(step, error)
        return None

    def _collect(self, step: Step, began: int) -> list[Output]:
        """Waits for the step; returns its tokens."""
        try:
            chosen = self.executable.collect()
            if [each is None for each in chosen] != [row.sampling is None for row in step.rows]:
                raise ModelFailed("the model gave tokens for other rows than those that end with one")
        except BaseException as error:
            self._fail(step, self._step_error(step, error))
            return []
        now = self._collected = now_ns()
        self.step_began = now if self._in_flight else 0
        if self.notes_steps:
            _note_steps(step, began, now)
        outputs = self.scheduler.completed(step, chosen, now, now - began)
        self.counts.steps += 1
        return outputs

    def _process(self, outputs: Sequence[Output]) -> None:
        """Makes text and responses of tokens."""
        for output in outputs:
            job = _job(output.sequence)
            if job.is_ended:
                # Of a sequence whose text has ended, one more token was computed in vain.
                continue
            chosen = output.chosen
            if isinstance(chosen, FailedRow):
                self._end(job, ModelFailed(f"model instance '{self.name}': {chosen.reason}; other sequences go on"))
                continue
            self.counts.note_token(output.sequence)
            try:
                delivery = job.take(chosen, output.finish_reason)
            except BaseException as error:
                self._stopped.append(output.sequence)
                self._end(job, _model_error(self.name, "the tokenizer failed", error))
                continue
            if delivery is None:
                continue
            self._deliveries.append(delivery)
            if job.wanted.streams:
                self._tokens_since = self._tokens_since or self._collected
            if delivery.is_last:
                job.ended_at = now_ns()
                # If by a stop string, the scheduler does not know yet.
                self._stopped.append(output.sequence)

    def _admit(self, job: Job, prompt: tuple[str, list[int]] | IsochroneError) -> None:
        job.is_known = True
        request, wanted = job.request, job.wanted
        if request.cancelled or job.is_ended:
            self._end(job, Cancelled("the request was cancelled"))
            return
        if isinstance(prompt, IsochroneError):
            self._end(job, prompt)
            return
        if self.lost:
            self._end(job, Unavailable(self.lost).not_begun())
            return
        text, tokens = prompt
        tokenizer = self.executable.tokenizer
        sequence = TokenSequence(
            tokens,
            wanted.parameters,
            priority=job.priority,
            arrived=request.arrived,
            deadline=request.deadline,
            end_tokens=tokenizer.end_tokens,
            job=job,
        )
        try:
            self.scheduler.admit(sequence, now_ns(), self._step_end)
        except IsochroneError as error:
            self._end(job, error)
            return
        job.begin(sequence, text, tokenizer)
        self.counts.prompt_tokens += len(tokens)
        self._load_until = 0

    def _cancel(self, job: Job) -> None:
        sequence = job.sequence
        self._end(job, Cancelled("the request was cancelled"))
        if sequence is not None:
            self.scheduler.remove(sequence)

    def _set_paused(self, job: Job, is_paused: bool) -> None:
        sequence = job.sequence
        if sequence is not None and not job.is_ended:
            (self.scheduler.pause if is_paused else self.scheduler.resume)(sequence)

    def _fail(self, step: Step, error: IsochroneError) -> None:
        """The sequences of a failed step end; their blocks are free. Without its device, all sequences end."""
        self.step_began = now_ns() if self._in_flight else 0
        if isinstance(error, DeviceLost):
            self._fail_all(f"{error.reason}; the device is lost to this process: restart it")
            return
        for sequence in step.sequences:
            self.scheduler.remove(sequence)
            self._end(_job(sequence), error)

    def _fail_all(self, reason: str) -> None:
        """The engine can compute nothing any more."""
        self.lost = self.lost or f"model instance '{self.name}': {reason}"
        error = ModelFailed(self.lost)
        for sequence in list(self.scheduler.sequences()):
            self.scheduler.remove(sequence)
            self._end(_job(sequence), error)

    def _end(self, job: Job, error: IsochroneError) -> None:
        if not job.is_ended:
            job.is_ended = True
            job.ended_at = now_ns()
            # They refer to each other: without this, only the garbage collector would free them.
            job.sequence = None
            self._deliveries.append(Delivery(job, None, error, True))

    def _step_error(self, step: Step, error: BaseException) -> IsochroneError:
        return _model_error(self.name, f"a step of {len(step.rows)} sequences failed", error)

    def _expected_ns(self) -> int:
        """Of the steps in flight, together."""
        costs = self.scheduler.times.costs
        return sum(costs.estimate(each.decode_rows, each.context, each.prefill) for each, _ in self._in_flight)

    def _publish(self, now: int, is_running: bool) -> None:
        if now < self._load_until and is_running:
            return
        self._load_until = now + _LOAD_NS
        self.load = self.scheduler.load(now + self._expected_ns() if is_running else 0)

    def _send(self) -> None:
        if not self._deliveries or self._loop is None:
            return
        if self._calls == _MOST_CALLS and not self._is_closed:
            took = self._ended_calls.get()
            if took:
                self.scheduler.times.observe_delivery(took)
            self._calls -= 1
        deliveries, self._deliveries = self._deliveries, []
        since, self._tokens_since = self._tokens_since, 0
        try:
            self._loop.call_soon_threadsafe(self._deliver_all, deliveries, since)
            self._calls += 1
        except RuntimeError:  # the loop is closed: the process is ending
            pass

    def _deliver_all(self, deliveries: list[Delivery], since: int) -> None:
        """On the loop's thread. ``since``: when their tokens came from the device; 0: they have none."""
        assert self._loop is not None
        try:
            self._deliver(deliveries)
        finally:
            # Behind the writes, which the front schedules for the end of this turn.
            self._loop.call_soon(self._delivered, since)

    def _delivered(self, since: int) -> None:
        self._ended_calls.put(now_ns() - since if since else 0)

    def _close(self) -> None:
        self._is_closing = True

    def _pin(self) -> None:
        if self._cpus:
            try:
                os.sched_setaffinity(0, self._cpus)
            except OSError as error:  # the CPUs were available when the model was loaded
                log.warning("cannot pin an instance", instance=self.name, cpus=self._cpus, error=str(error))


def _job(sequence: TokenSequence) -> Job:
    job: Any = sequence.job
    return job  # type: ignore[no-any-return]


def _note_steps(step: Step, began: int, ended: int) -> None:
    """For the traces of its requests."""
    for place, (sequence, row) in enumerate(zip(step.sequences, step.rows, strict=True)):
        steps = _job(sequence).steps
        if steps is not None:
            steps.add(began, ended, len(row.tokens), place >= step.decode_rows, len(step.rows))


def _nothing() -> None:
    """Only ends the wait for the inbox."""


def _model_error(name: str, what: str, error: BaseException) -> IsochroneError:
    """An error that keeps the traceback as text: its frames would hold the tensors of the step."""
    text = "".join(traceback.format_exception(error))
    traceback.clear_frames(error.__traceback__)
    if isinstance(error, IsochroneError):
        failed: IsochroneError = error.with_traceback(None)
        failed.__cause__ = failed.__context__ = None
    else:
        failed = ModelFailed(f"model instance '{name}': {what}: {type(error).__name__}: {error}")
    failed.add_note(text)
    return failed
