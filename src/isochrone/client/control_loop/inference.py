"""The models of a loop in one tick: asks the remote one, runs the local one, and returns what answers in time.

``decision`` makes the plan of the tick. If it asks the remote model, the tick waits for the answer until the local
model must start. Answers and failures come by tick, also after it: then they are counted, and answers are reported to
``on_late``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from isochrone.client.answers import Outputs
from isochrone.client.control_loop.decision import Ask, Decision
from isochrone.client.control_loop.late_answers import Arrival, LateAnswers
from isochrone.client.control_loop.local_runs import LocalRuns
from isochrone.client.control_loop.remote_calls import RemoteCalls, RemoteModel, RequestOptions
from isochrone.client.control_loop.settings import LoopSettings
from isochrone.client.control_loop.times import LoopTimes, Source
from isochrone.client.control_loop.waits import Wait
from isochrone.clock import SECOND
from isochrone.errors import InvalidArgument

# Not structlog, which prints to standard output unless the program has configured it.
log = logging.getLogger(__name__)

OnLate = Callable[[int, Outputs, float], object]
#: Outputs, and the model that they are of.
Answer = tuple[Mapping[str, Any] | None, Source]
UNANSWERED: Answer = (None, "fallback")


class Inference:
    def __init__(
        self,
        remote: RemoteModel,
        options: RequestOptions,
        local: LocalRuns | None,
        settings: LoopSettings,
        on_late: OnLate | None,
        times: LoopTimes,
        wait: Wait,
        clock: Callable[[], int],
    ) -> None:
        """``wait`` is the loop's only one."""
        self._model = options.model
        self._remote = RemoteCalls(remote, options, settings.infer, settings.late_answer, self._answered, self._failed)
        self._local = local
        self._on_late = on_late
        self._times = times
        self._wait = wait
        self._clock = clock

        # Of all ticks.
        self._decision = Decision(settings.infer, settings.margin, has_local=local is not None)
        self._late = LateAnswers()
        self._asks = True
        #: What ``on_late`` raised.
        self._error: BaseException | None = None

        # Of the tick that is under way.
        self._answer: Outputs | None = None
        #: The remote model may still answer.
        self._is_asked = False

    @property
    def is_remote_trusted(self) -> bool:
        return self._decision.remote.is_trusted

    async def answer(self, tick: int, inputs: Mapping[str, Any], now: int, ends: int) -> Answer:
        """What a model answered by ``ends``."""
        self._open(tick)
        try:
            local = await self._inferred(tick, inputs, now, ends)
        finally:
            self._late.close()
        if self._answer is not None:
            return self._answer, "remote"
        return UNANSWERED if local is None else (local, "local")

    def _open(self, tick: int) -> None:
        self._answer = None
        self._is_asked = False
        self._late.open(tick)

    async def _inferred(self, tick: int, inputs: Mapping[str, Any], now: int, ends: int) -> Mapping[str, Any] | None:
        """The local model's outputs if it ran in time; a remote answer is in ``_answer``."""
        plan = self._decision.plan(now, ends)
        self._times.doubts = self._decision.remote.losses
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
        self._times.local_unfit = self._decision.fitness.unfit

    def _local_failed(self, error: BaseException) -> None:
        self._times.local_failed(f"{type(error).__name__}: {error}")
        self._decision.fitness.failed(self._clock())
        self._times.local_unfit = self._decision.fitness.unfit

    async def _ran_in_thread(
        self, local: LocalRuns, inputs: Mapping[str, Any], began: int, ends: int
    ) -> Mapping[str, Any] | None:
        if local.is_busy:
            self._times.local_failed("the run of an earlier tick has not ended")
            self._decision.fitness.has_not_ended(self._clock())
            self._times.local_unfit = self._decision.fitness.unfit
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
        if ask is Ask.NOTHING or not self._asks:
            return
        self._times.requests += 1
        self._times.probes += ask is Ask.PROBE
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
        self._times.round_trip(age)
        if arrival is Arrival.IN_TIME:
            self._answer = outputs
            self._is_asked = False
            self._wait.check()
        else:
            self._times.late_answers += 1
            if self._on_late is not None:
                try:
                    returned: object = self._on_late(tick, outputs, age / SECOND)
                    if inspect.iscoroutine(returned):
                        returned.close()
                        raise InvalidArgument("on_late: expected a function that is not asynchronous")
                except Exception as error:
                    self._error = error

    def _failed(self, tick: int, code: str, text: str) -> None:
        self._decision.remote.failed(tick, self._clock())
        if code not in self._times.remote_failures:
            # One for each code: a dead link fails in every tick.
            log.warning("a control loop's request failed: model=%s code=%s error=%s", self._model, code, text)
        self._times.remote_failed(code, text)
        if self._late.given_up(tick):
            # The local model need not wait for what will not come.
            self._is_asked = False
            self._wait.check()

    async def _wait_for_remote(self, instant: int) -> None:
        """Return at the instant, or earlier when the remote model has answered or will not answer."""
        await self._wait.until(instant, lambda: not self._is_asked)

    def raise_late_error(self) -> None:
        """What ``on_late`` raised, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop_asking(self) -> None:
        """Send no request from now on, also in a tick that is under way."""
        self._asks = False

    async def close(self) -> None:
        """Give up all requests, and wait for a run of the local model; each whatever happens in the other."""
        async with AsyncExitStack() as steps:
            if self._local is not None:
                steps.push_async_callback(self._local.close)
            steps.push_async_callback(self._remote.close)
