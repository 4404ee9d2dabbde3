"""A runner on a real loop with real threads, and models whose runs are in the test's hands.

Tests wait for what other threads do with ``until``; nothing here sleeps or decides by the time that has passed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from queued_requests import RecordedRequest, plan_of, rows_of

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import IsochroneError
from isochrone.worker.backends.interface import Executable
from isochrone.worker.execution.batches.batch_runner import BatchRunner
from isochrone.worker.execution.inline.compute_stage import ComputeStage
from isochrone.worker.execution.inline.watchdog import InlineWatchdog
from isochrone.worker.execution.instances.instance import Instance
from isochrone.worker.execution.instances.resource_gate import ResourceGate
from isochrone.worker.execution.runner_context import RunnerContext
from isochrone.worker.execution.streams.stream_runner import StreamRunner
from isochrone.worker.scheduling.batch_queue import QueueRules
from isochrone.worker.scheduling.latency_curve import LatencyCurve
from isochrone.worker.statistics import ModelStatistics


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop turn until what other threads do has come about."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


class Gated(Executable):
    """Doubles; a run with a negative value waits until the test opens the gate."""

    inline_allowed = False

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.closed = threading.Event()
        self.runs: list[int] = []

    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        self.runs.append(len(inputs["x"]))
        if inputs["x"].min() < 0:
            self.entered.set()
            self.gate.wait()
        return {"y": inputs["x"] * 2}

    def close(self) -> None:
        self.closed.set()


class GatedStream(Gated):
    decoupled = True

    def stream(self, inputs: dict[str, Any], parameters: Any) -> Iterator[dict[str, Any]]:
        yield {"y": inputs["x"]}
        if inputs["x"].min() < 0:
            self.entered.set()
            self.gate.wait()
        yield {"y": inputs["x"]}


class Bench:
    """A runner, its instances, and its account of requests under way.

    A stage is as long as its requests need, however busy the machine is, unless the test is about its end.
    """

    def __init__(
        self,
        *executables: Executable,
        max_rows: int = 8,
        run_ns: int = MILLISECOND,
        rules: QueueRules | None = None,
        stage_ns: int = 100 * SECOND,
        gate: ResourceGate | None = None,
        **options: Any,
    ) -> None:
        self.in_flight = 0
        self.replacements: list[Executable | IsochroneError] = []
        self.curve = LatencyCurve(max_rows)
        for rows in range(1, max_rows + 1):
            self.curve.observe(rows, run_ns)
        rules, statistics = rules or QueueRules(max_rows=max_rows), ModelStatistics("m", "1")
        self.stage = ComputeStage(stage_ns)
        self.runner: Any
        context = RunnerContext("m", rules, self.curve, statistics, InlineWatchdog(), self.stage, self.over, **options)
        self.runner = StreamRunner(context) if executables[0].decoupled else BatchRunner(context, gate)
        #: Of the instances that were replaced.
        self.replaced: list[int] = []
        self.runner.start([self.instance(each, number) for number, each in enumerate(executables)], self.replace)

    def instance(self, executable: Executable, number: int) -> Instance:
        finished = getattr(self.runner, "finished", lambda *_: None)
        return Instance(executable, "m-1", 8, (), asyncio.get_running_loop(), finished, number)

    def replace(self, number: int, made: Callable[[Instance | IsochroneError], None]) -> None:
        self.replaced.append(number)
        given = self.replacements.pop(0)
        made(given if isinstance(given, IsochroneError) else self.instance(given, number))

    def over(self) -> None:
        self.in_flight -= 1

    def send(self, value: float, deadline: int | None = None) -> RecordedRequest:
        now = now_ns()
        request = RecordedRequest(plan_of(), {"x": rows_of(value)}, now, deadline or now + 100 * SECOND)
        self.submit(request)
        return request

    def submit(self, request: RecordedRequest) -> None:
        """As the only request of a turn."""
        self.in_flight += 1
        self.stage.begin()
        try:
            self.runner.submit(request)
        except IsochroneError:
            self.in_flight -= 1
            raise
        finally:
            self.stage.end()

    async def answers(self, *requests: RecordedRequest) -> list[Any]:
        await until(lambda: all(request.answers for request in requests))
        return [request.answers[-1] for request in requests]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 100))


async def entered(executable: Gated) -> None:
    await until(executable.entered.is_set)
