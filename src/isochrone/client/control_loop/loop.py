"""The control loop: runs sense, infer and act of each tick, and lets pure decisions choose between the models.

A tick senses, then makes its plan (``decision``). If the plan asks the remote model, the tick waits for its answer
until the local model must start. Whatever answered by the act instant becomes the action; if nothing did, the action
is the last one or the declared fallback. A tick that begins always acts, also if ``sense`` raises, unless ``run`` is
cancelled; a tick whose act instant passed before it could begin is skipped and counted. Ticks keep their phase.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from isochrone.client.answers import Outputs
from isochrone.client.async_client import AsyncClient
from isochrone.client.control_loop.decision import Ask, Decision
from isochrone.client.control_loop.late_answers import Arrival, LateAnswers
from isochrone.client.control_loop.local_runs import LocalModel, LocalRuns
from isochrone.client.control_loop.remote_calls import RemoteCalls, RemoteModel, RequestOptions
from isochrone.client.control_loop.schedule import Schedule, TickLimits
from isochrone.client.control_loop.settings import checked_functions, checked_settings
from isochrone.client.control_loop.times import LoopSummary, LoopTimes, Source
from isochrone.client.control_loop.waits import Wait
from isochrone.clock import SECOND, now_ns
from isochrone.errors import InvalidArgument

# Not structlog, which prints to standard output unless the program has configured it.
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Action:
    """What a tick acts on."""

    tick: int
    #: The outputs of the model that answered, or the action that replaces them.
    outputs: Mapping[str, Any]
    #: "remote" or "local": the model that answered. "held": the last action again. "fallback": the declared one.
    source: Source


Sense = Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
Act = Callable[[Action], object]
OnLate = Callable[[int, Outputs, float], object]


class ControlLoop:
    """An agent's loop at a fixed rate, with a model on a server and a small one of its own.

    ::

        async with isochrone.ControlLoop(
            "localhost:8000", "policy", hz=50, sense_ms=2, infer_ms=15, act_ms=3,
            sense=read_sensors, act=move, local=small_policy, fallback={"force": np.zeros(1)},
        ) as loop:
            summary = await loop.run(ticks=500)

    Args:
        server: The server's address, or a client, which several loops may share and which is not closed here.
        model: The model's name there.
        hz: Ticks per second, 1 to 1,000.
        sense_ms, infer_ms, act_ms: The budget of each stage; together at most the period. The tick's deadline is their
            sum after its start.
        sense: Returns the model's inputs; may be asynchronous. If it raises, the tick acts on the last action or the
            fallback, and the loop ends with that error.
        act: Takes an ``Action``; may be asynchronous. If it raises, the loop ends with that error.
        local: The local model: from inputs to outputs. If it raises, the tick counts a failure and waits for a remote
            answer. None: there is none, and late answers mean the fallback.
        fallback: The outputs to act on when no model has answered in time.
        hold_last_ticks: For so many ticks in a row, repeat the last action before the fallback is used.
        local_in_thread: Run the local model on a thread, for one that takes more than a fraction of the budget and
            releases the interpreter's lock.
        on_late: Called with tick, answer and age in seconds when an answer comes after its tick has acted. If it
            raises, the loop ends with that error, or ``close`` raises it after the last tick. Not asynchronous.
        outputs, version, priority, headers: Of every request, as for ``isochrone.AsyncClient.infer``.
        late_answer_ms: How long an answer is waited for, at least ``infer_ms``. None: 250 or, if that is more, twice
            ``infer_ms``.
        margin_ms: Time between the planned end of a local run and the act instant.
        clock: Monotonic nanoseconds; for simulations.
    """

    def __init__(
        self,
        server: str | RemoteModel,
        model: str,
        *,
        hz: float,
        sense_ms: float,
        infer_ms: float,
        act_ms: float,
        sense: Sense,
        act: Act,
        local: LocalModel | None,
        fallback: Mapping[str, Any],
        hold_last_ticks: int = 0,
        local_in_thread: bool = False,
        on_late: OnLate | None = None,
        outputs: Sequence[str] | None = None,
        version: str = "",
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        late_answer_ms: float | None = None,
        margin_ms: float = 1.0,
        clock: Callable[[], int] = now_ns,
    ) -> None:
        checked_functions(sense, act, local, on_late, fallback)
        self._settings = settings = checked_settings(
            hz, sense_ms, infer_ms, act_ms, late_answer_ms, margin_ms, hold_last_ticks
        )
        self._sense, self._act, self._on_late = sense, act, on_late
        self._model = model
        self._fallback = fallback
        self._clock = clock
        # A second attempt within a tick would come too late, and the next tick has newer inputs.
        self._own_client: AsyncClient | None = None
        if isinstance(server, str):
            server = self._own_client = AsyncClient(server, retries=0)
        self._remote = RemoteCalls(
            server,
            RequestOptions(model, outputs, version, priority, headers),
            settings.infer,
            settings.late_answer,
            self._answered,
            self._failed,
        )
        self._local = None if local is None else LocalRuns(local, in_thread=local_in_thread)
        self._decision = Decision(settings.infer, settings.margin, has_local=local is not None)
        self._late = LateAnswers()
        self._wait = Wait(clock)
        self.times = LoopTimes()

        # Of all ticks.
        self._next_tick = 0
        #: The task of ``run``, and what is set when it ends.
        self._runner: asyncio.Task[Any] | None = None
        self._run_ended = asyncio.Event()
        self._is_closed = False
        self._stop = False
        #: What ``on_late`` raised.
        self._error: BaseException | None = None
        self._last: Mapping[str, Any] | None = None
        self._held = 0

        # Of the tick that is under way.
        self._answer: Outputs | None = None
        #: The remote model may still answer.
        self._is_asked = False

    @property
    def tick(self) -> int:
        """The number of the tick that is under way, or of the next one. No number is used twice, in any run."""
        return self._next_tick

    @property
    def is_remote_trusted(self) -> bool:
        """Whether ticks wait for the remote model; otherwise it is probed."""
        return self._decision.remote.is_trusted

    def summary(self) -> LoopSummary:
        return self.times.summary()

    def stop(self) -> None:
        """End ``run`` after the tick that is under way; where none runs, the next ``run`` has no tick."""
        self._stop = True

    async def run(self, ticks: int | None = None) -> LoopSummary:
        """Run so many ticks, skipped ones included, or until ``stop``; the figures since the loop was made."""
        if self._runner is not None or self._is_closed:
            raise InvalidArgument(f"the control loop is {'closed' if self._is_closed else 'running already'}")
        self._runner = asyncio.current_task()
        self._run_ended.clear()
        try:
            await self._run_ticks(ticks)
        finally:
            self._runner = None
            self._stop = False
            self._run_ended.set()
        return self.summary()

    async def _run_ticks(self, ticks: int | None) -> None:
        first = self._next_tick
        schedule = Schedule(self._settings, self._clock(), first)
        while ticks is None or self._next_tick < first + ticks:
            await self._sleep_until(schedule.start_of(self._next_tick))
            if self._stop:
                return
            # The event loop may have woken this task late.
            due = schedule.next_from(self._next_tick, self._clock())
            if due > self._next_tick:
                last = due if ticks is None else min(due, first + ticks)
                self.times.skipped(last - self._next_tick)
                self._next_tick = last
                continue
            try:
                await self._run_tick(due, schedule.limits(due))
            finally:
                # Also of a tick that was cancelled or failed: a number names one request, whose answer may come.
                self._next_tick = due + 1
            self._raise_late_error()

    async def _run_tick(self, tick: int, limits: TickLimits) -> None:
        began = self._clock()
        inputs, failure = None, None
        try:
            inputs = await self._sensed(limits.infer_ends)
        except Exception as error:
            # The tick acts without inputs before the run ends.
            failure = error
        sensed = self._clock()
        action = await self._chosen(tick, inputs, sensed, limits.infer_ends)
        chosen = self._clock()
        done = self._act(action)
        if inspect.isawaitable(done):
            await done
        self.times.tick(action.source, limits, began, sensed, chosen, self._clock())
        if failure is not None:
            raise failure

    async def _sensed(self, ends: int) -> Mapping[str, Any] | None:
        """The inputs; None if they are not there by the act instant."""
        found = self._sense()
        if isinstance(found, Mapping):
            return found
        if not inspect.isawaitable(found):
            raise InvalidArgument(f"sense: expected a dict of inputs, returned {type(found).__name__}")
        limit = asyncio.timeout((ends - self._clock()) / SECOND)
        try:
            async with limit:
                inputs = await found
        except TimeoutError:
            if limit.expired():
                return None
            raise
        if not isinstance(inputs, Mapping):
            raise InvalidArgument(f"sense: expected a dict of inputs, returned {type(inputs).__name__}")
        return inputs

    async def _chosen(self, tick: int, inputs: Mapping[str, Any] | None, now: int, ends: int) -> Action:
        outputs: Mapping[str, Any] | None = None
        source: Source = "fallback"
        if inputs is not None and now < ends:
            self._open(tick)
            try:
                local = await self._inferred(tick, inputs, now, ends)
            finally:
                self._late.close()
            if self._answer is not None:
                outputs, source = self._answer, "remote"
            elif local is not None:
                outputs, source = local, "local"
        if outputs is None:
            if self._last is not None and self._held < self._settings.hold_last_ticks:
                outputs, source = self._last, "held"
                self._held += 1
            else:
                outputs = self._fallback
        else:
            self._last = outputs
            self._held = 0
        return Action(tick, outputs, source)

    def _open(self, tick: int) -> None:
        self._answer = None
        self._is_asked = False
        self._late.open(tick)

    async def _inferred(self, tick: int, inputs: Mapping[str, Any], now: int, ends: int) -> Mapping[str, Any] | None:
        """The local model's outputs if it ran in time; a remote answer is in ``_answer``."""
        plan = self._decision.plan(now, ends)
        self.times.doubts = self._decision.remote.losses
        local, local_at = self._local, plan.local_at
        # A local run on the event loop would delay a request that nothing waits for, and its round trip would count.
        is_asked_first = local is None or local_at is None or local_at > now or local.is_in_thread
        if is_asked_first:
            self._ask(plan.ask, tick, inputs, now)
        if local is None or local_at is None:
            await self._wait_for_remote(ends)
            return None
        if local_at > now:
            await self._wait_for_remote(local_at)
            if self._answer is not None:
                return None
        # A wake-up that comes late is part of what a local run takes.
        began = min(self._clock(), max(local_at, now))
        if local.is_in_thread:
            return await self._ran_in_thread(local, inputs, began, ends)
        outputs = self._ran(local, inputs, began)
        if not is_asked_first:
            self._ask(plan.ask, tick, inputs, self._clock())
        if outputs is None:
            await self._wait_for_remote(ends)
        return outputs

    def _ran(self, local: LocalRuns, inputs: Mapping[str, Any], began: int) -> Mapping[str, Any] | None:
        try:
            outputs = local.run(inputs)
        except Exception as error:
            self._local_failed(error)
            return None
        self._local_took(began)
        return outputs

    def _local_took(self, began: int) -> None:
        now = self._clock()
        self._decision.local_took(now - began, now)
        self.times.local_unfit = self._decision.fitness.unfit

    def _local_failed(self, error: BaseException) -> None:
        self.times.local_failed(f"{type(error).__name__}: {error}")
        self._decision.fitness.failed(self._clock())
        self.times.local_unfit = self._decision.fitness.unfit

    async def _ran_in_thread(
        self, local: LocalRuns, inputs: Mapping[str, Any], began: int, ends: int
    ) -> Mapping[str, Any] | None:
        if local.is_busy:
            self.times.local_failed("the run of an earlier tick has not ended")
            self._decision.fitness.has_not_ended(self._clock())
            self.times.local_unfit = self._decision.fitness.unfit
            await self._wait_for_remote(ends)
            return None
        running = local.start(inputs)
        running.add_done_callback(lambda run: self._ended_in_thread(run, began))
        await self._wait.until(ends, lambda: self._answer is not None or running.done())
        if not running.done():
            return None
        if running.exception() is None:
            return running.result()
        await self._wait_for_remote(ends)
        return None

    def _ended_in_thread(self, run: asyncio.Future[Mapping[str, Any]], began: int) -> None:
        if run.cancelled():
            return
        error = run.exception()
        if error is not None:
            self._local_failed(error)
        else:
            self._local_took(began)
        self._wait.check()

    def _ask(self, ask: Ask, tick: int, inputs: Mapping[str, Any], now: int) -> None:
        if ask is Ask.NOTHING or self._is_closed:
            return
        self.times.requests += 1
        self.times.probes += ask is Ask.PROBE
        self._decision.remote.asked(tick, now)
        self._late.asked(tick, now)
        self._is_asked = True
        self._remote.ask(tick, inputs)

    def _answered(self, tick: int, outputs: Outputs) -> None:
        now = self._clock()
        arrival, age = self._late.arrived(tick, now)
        if arrival is Arrival.UNKNOWN:
            return
        self._decision.remote.answered(tick, now, self._decision.usable)
        self.times.round_trip(age)
        if arrival is Arrival.IN_TIME:
            self._answer = outputs
            self._is_asked = False
            self._wait.check()
        else:
            self.times.late_answers += 1
            if self._on_late is not None:
                try:
                    returned: object = self._on_late(tick, outputs, age / SECOND)
                    if inspect.iscoroutine(returned):
                        returned.close()
                        raise InvalidArgument("on_late: expected a function that is not asynchronous")
                except Exception as error:
                    self._error = error

    def _raise_late_error(self) -> None:
        """Once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _failed(self, tick: int, code: str, text: str) -> None:
        self._decision.remote.failed(tick, self._clock())
        if code not in self.times.remote_failures:
            # One for each code: a dead link fails in every tick.
            log.warning("a control loop's request failed: model=%s code=%s error=%s", self._model, code, text)
        self.times.remote_failed(code, text)
        if self._late.given_up(tick):
            # The local model need not wait for what will not come.
            self._is_asked = False
            self._wait.check()

    async def _wait_for_remote(self, instant: int) -> None:
        """Return at the instant, or earlier when the remote model has answered or will not answer."""
        await self._wait.until(instant, lambda: not self._is_asked)

    async def _sleep_until(self, instant: int) -> None:
        """Return at the instant, at once after ``stop``, or when the loop is closed."""
        # At least one turn of the event loop in each tick: answers are read there.
        await self._wait.until(instant, lambda: self._stop)

    async def close(self) -> None:
        """Wait for the tick that is under way, give up all requests, and end what the loop started.

        May be called again, and by ``sense`` and ``act``, for whose tick it does not wait. Raises what ``on_late``
        raised after the last tick.
        """
        await self._end()
        self._raise_late_error()

    async def _end(self) -> None:
        self._is_closed = True
        self._stop = True
        self._wait.check()
        # Each step is taken whatever happens in the others.
        async with AsyncExitStack() as steps:
            if self._own_client is not None:
                steps.push_async_callback(self._own_client.close)
            if self._local is not None:
                steps.push_async_callback(self._local.close)
            steps.push_async_callback(self._remote.close)
            if self._runner is not None and self._runner is not asyncio.current_task():
                await self._run_ended.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()
        if error is None:
            self._raise_late_error()
