"""The shell around the queue, on a real loop with real threads; what a model does is in the test's hands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from queued_requests import RecordedRequest, plan_of, rows_of

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import DeadlineExceeded, IsochroneError, ModelFailed, Unavailable
from isochrone.worker.backends import Executable
from isochrone.worker.curve import LatencyCurve
from isochrone.worker.instance import Instance
from isochrone.worker.runner import Runner
from isochrone.worker.scheduler import QueueRules
from isochrone.worker.statistics import ModelStatistics
from isochrone.worker.watchdog import InlineWatchdog


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
    """A runner, its instances, and its account of requests under way."""

    def __init__(self, *executables: Executable, max_rows: int = 8, **options: Any) -> None:
        self.in_flight = 0
        self.replacements: list[Executable | IsochroneError] = []
        self.curve = LatencyCurve(max_rows)
        for rows in range(1, max_rows + 1):
            self.curve.observe(rows, MILLISECOND)
        self.runner = Runner(
            "m",
            QueueRules(max_rows=max_rows),
            self.curve,
            ModelStatistics("m", "1"),
            InlineWatchdog(),
            self.over,
            **options,
        )
        self.runner.start([self.instance(executable) for executable in executables], self.replace)

    def instance(self, executable: Executable) -> Instance:
        return Instance(executable, "m-1", 8, (), asyncio.get_running_loop(), self.runner.finished)

    def replace(self, made: Callable[[Instance | IsochroneError], None]) -> None:
        given = self.replacements.pop(0)
        made(given if isinstance(given, IsochroneError) else self.instance(given))

    def over(self) -> None:
        self.in_flight -= 1

    def send(self, value: float, deadline: int | None = None) -> RecordedRequest:
        now = now_ns()
        request = RecordedRequest(plan_of(), {"x": rows_of(value)}, now, deadline or now + 100 * SECOND)
        self.in_flight += 1
        try:
            self.runner.submit(request)
        except IsochroneError:
            self.in_flight -= 1
            raise
        return request

    async def answers(self, *requests: RecordedRequest) -> list[Any]:
        await until(lambda: all(request.answers for request in requests))
        return [request.answers[-1] for request in requests]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


async def entered(executable: Gated) -> None:
    await until(executable.entered.is_set)


def test_what_arrives_in_one_turn_shares_a_batch() -> None:
    async def scenario() -> None:
        executable = Gated()
        bench = Bench(executable)
        requests = [bench.send(value) for value in range(5)]
        answers = await bench.answers(*requests)
        assert [answer["y"].item() for answer in answers] == [0, 2, 4, 6, 8]
        assert executable.runs == [5]
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()
        assert executable.closed.is_set()

    run(scenario)


def test_a_stuck_run_is_given_up_and_replaced() -> None:
    async def scenario() -> None:
        hung, fresh = Gated(), Gated()
        bench = Bench(hung, max_rows=1, execution_timeout_ns=SECOND)
        bench.replacements = [fresh]
        stuck = bench.send(-1)
        waiting = bench.send(4)
        await entered(hung)
        bench.runner.check_stuck(now_ns())
        assert not stuck.answers
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        error, answer = await bench.answers(stuck, waiting)
        assert isinstance(error, ModelFailed)
        assert "execution_timeout_ms (1000)" in str(error)
        assert answer["y"].item() == 8
        assert fresh.runs == [1]
        assert bench.in_flight == 0
        # When the run ends after all, its executable is freed, and nobody is answered twice.
        assert not hung.closed.is_set()
        hung.gate.set()
        await until(lambda: hung.closed.is_set())
        assert len(stuck.answers) == 1
        bench.runner.release()
        bench.runner.close()
        assert fresh.closed.is_set()

    run(scenario)


def test_a_model_that_cannot_be_replaced_refuses_instead_of_hanging() -> None:
    async def scenario() -> None:
        hung = Gated()
        bench = Bench(hung, max_rows=1, execution_timeout_ns=SECOND)
        bench.replacements = [ModelFailed("the file is gone")]
        stuck, waiting = bench.send(-1), bench.send(4)
        await entered(hung)
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        answers = await bench.answers(stuck, waiting)
        assert "the file is gone" in str(answers[1])
        with pytest.raises(ModelFailed):
            bench.send(5)
        assert bench.in_flight == 0
        hung.gate.set()
        bench.runner.close()

    run(scenario)


def test_hung_runs_are_replaced_only_so_often() -> None:
    async def scenario() -> None:
        models = [Gated() for _ in range(9)]
        bench = Bench(models[0], max_rows=1, execution_timeout_ns=SECOND)
        bench.replacements = list(models[1:])
        for model in models:
            stuck = bench.send(-1)
            await entered(model)
            bench.runner.check_stuck(now_ns() + 2 * SECOND)
            await bench.answers(stuck)
        with pytest.raises(Unavailable, match="9 runs hang"):
            bench.send(1)
        for model in models:
            model.gate.set()

    run(scenario)


def test_late_requests_are_told_while_the_only_instance_is_stuck() -> None:
    async def scenario() -> None:
        hung = Gated()
        bench = Bench(hung, max_rows=1)
        stuck = bench.send(-1)
        await entered(hung)
        waiting = bench.send(1, now_ns() + 10 * SECOND)
        bench.runner.check_stuck(now_ns() + 11 * SECOND)
        assert isinstance((await bench.answers(waiting))[0], DeadlineExceeded)
        hung.gate.set()
        assert (await bench.answers(stuck))[0]["y"].item() == -2
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)


def test_unloading_does_not_wait_for_a_run_that_never_ends() -> None:
    async def scenario() -> None:
        hung = Gated()
        bench = Bench(hung, max_rows=1)
        stuck, waiting = bench.send(-1), bench.send(1)
        await entered(hung)
        bench.runner.fail_all()
        bench.runner.release()
        bench.runner.close()
        assert all(isinstance(answer, Unavailable) for answer in await bench.answers(stuck, waiting))
        assert bench.in_flight == 0
        assert not hung.closed.is_set()
        hung.gate.set()
        await asyncio.get_running_loop().run_in_executor(None, hung.closed.wait)
        await asyncio.sleep(0)
        assert (len(stuck.answers), bench.in_flight) == (1, 0)

    run(scenario)


def test_nothing_is_taken_after_release() -> None:
    async def scenario() -> None:
        bench = Bench(Gated())
        bench.runner.release()
        with pytest.raises(Unavailable, match="is being unloaded"):
            bench.send(1)
        bench.runner.close()

    run(scenario)


def test_cancelled_requests_are_counted_and_not_answered() -> None:
    async def scenario() -> None:
        executable = Gated()
        bench = Bench(executable, max_rows=1)
        first = bench.send(-1)
        await entered(executable)
        gone = bench.send(1)
        gone.cancelled = first.cancelled = True
        executable.gate.set()
        assert await bench.answers(first, gone) == ["dropped", "dropped"]
        assert executable.runs == [1]
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)


def test_ordered_answers_wait_for_those_before_them() -> None:
    async def scenario() -> None:
        slow, fast = Gated(), Gated()
        bench = Bench(fast, slow, max_rows=1, preserve_ordering=True)
        first, second = bench.send(-1), bench.send(2)
        await until(lambda: bool(fast.runs and slow.runs))
        await entered(slow)
        with pytest.raises(DeadlineExceeded):
            bench.send(3, now_ns() - 1)
        await until(lambda: bench.runner._held)
        assert not second.answers
        slow.gate.set()
        answers = await bench.answers(first, second)
        assert [answer["y"].item() for answer in answers] == [-2, 4]
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)


def test_streams_each_have_a_run_of_their_own() -> None:
    async def scenario() -> None:
        bench = Bench(GatedStream(), max_rows=8)
        requests = [bench.send(value) for value in (1, 2, 3)]
        await until(lambda: all(request.answers[-1:] == ["finished"] for request in requests))
        assert [len(request.answers) for request in requests] == [3, 3, 3]
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)


def test_unloading_ends_a_stream_that_never_ends() -> None:
    async def scenario() -> None:
        executable = GatedStream()
        bench = Bench(executable)
        endless, waiting = bench.send(-1), bench.send(1)
        await entered(executable)
        await until(lambda: endless.answers)
        bench.runner.fail_all()
        bench.runner.release()
        bench.runner.close()
        assert isinstance(endless.answers[-1], Unavailable)
        assert isinstance(waiting.answers[-1], Unavailable)
        assert bench.in_flight == 0
        executable.gate.set()
        await asyncio.get_running_loop().run_in_executor(None, executable.closed.wait)
        await asyncio.sleep(0)
        assert isinstance(endless.answers[-1], Unavailable)

    run(scenario)
