"""The control loop: runs sense, infer and act of each tick.

A tick senses, asks its models (``inference``) and acts. Whatever answered by the act instant becomes the action; if
nothing did, the action is the last one or the declared fallback. A tick that begins always acts, also if ``sense``
raises, unless ``run`` is cancelled; a tick whose act instant passed before it could begin is skipped and counted. Ticks
keep their phase.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from isochrone.client.async_client import AsyncClient
from isochrone.client.control_loop.inference import UNANSWERED, Inference, OnLate
from isochrone.client.control_loop.local_runs import LocalModel, LocalRuns
from isochrone.client.control_loop.remote_calls import RemoteModel, RequestOptions
from isochrone.client.control_loop.schedule import Schedule, TickLimits
from isochrone.client.control_loop.settings import checked_functions, checked_settings
from isochrone.client.control_loop.times import LoopSummary, LoopTimes, Source
from isochrone.client.control_loop.waits import Wait
from isochrone.clock import SECOND, now_ns
from isochrone.errors import InvalidArgument


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
        self._sense, self._act = sense, act
        self._fallback = fallback
        self._clock = clock
        # A second attempt within a tick would come too late, and the next tick has newer inputs.
        self._own_client: AsyncClient | None = None
        if isinstance(server, str):
            server = self._own_client = AsyncClient(server, retries=0)
        self._wait = Wait(clock)
        self.times = LoopTimes()
        self._inference = Inference(
            server,
            RequestOptions(model, outputs, version, priority, headers),
            None if local is None else LocalRuns(local, in_thread=local_in_thread),
            settings,
            on_late,
            self.times,
            self._wait,
            clock,
        )

        # Of all ticks.
        self._next_tick = 0
        #: The task of ``run``, and what is set when it ends.
        self._runner: asyncio.Task[Any] | None = None
        self._run_ended = asyncio.Event()
        self._is_closed = False
        self._stop = False
        self._last: Mapping[str, Any] | None = None
        self._held = 0

    @property
    def tick(self) -> int:
        """The number of the tick that is under way, or of the next one. No number is used twice, in any run."""
        return self._next_tick

    @property
    def is_remote_trusted(self) -> bool:
        """Whether ticks wait for the remote model; otherwise it is probed."""
        return self._inference.is_remote_trusted

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
            self._inference.raise_late_error()

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
        outputs, source = UNANSWERED
        if inputs is not None and now < ends:
            outputs, source = await self._inference.answer(tick, inputs, now, ends)
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
        self._inference.raise_late_error()

    async def _end(self) -> None:
        self._is_closed = True
        self._stop = True
        self._inference.stop_asking()
        self._wait.check()
        # Each step is taken whatever happens in the others.
        async with AsyncExitStack() as steps:
            if self._own_client is not None:
                steps.push_async_callback(self._own_client.close)
            steps.push_async_callback(self._inference.close)
            if self._runner is not None and self._runner is not asyncio.current_task():
                await self._run_ended.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()
        if error is None:
            self._inference.raise_late_error()
