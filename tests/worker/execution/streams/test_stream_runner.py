"""Decoupled models: streams under way, how they end, and what becomes of one that hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from queued_requests import RecordedRequest, plan_of, rows_of
from runner_bench import Bench, GatedStream, entered, run, until

from isochrone.clock import SECOND, now_ns
from isochrone.errors import ModelFailed, Unavailable, Unsupported
from isochrone.worker.backends.interface import Executable


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


def test_a_stream_that_hangs_is_given_up_and_its_instance_replaced() -> None:
    async def scenario() -> None:
        hung, fresh = GatedStream(), GatedStream()
        bench = Bench(hung, execution_timeout_ns=SECOND)
        bench.replacements = [fresh]
        stuck, waiting = bench.send(-1), bench.send(1)
        await entered(hung)
        await until(lambda: stuck.answers)
        bench.runner.check_stuck(now_ns())
        assert len(stuck.answers) == 1
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        assert isinstance(stuck.answers[-1], ModelFailed)
        assert "execution_timeout_ms (1000)" in str(stuck.answers[-1])
        await until(lambda: waiting.answers[-1:] == ["finished"])
        assert bench.in_flight == 0
        assert not hung.closed.is_set()
        hung.gate.set()
        await until(hung.closed.is_set)
        await asyncio.sleep(0)
        assert len(stuck.answers) == 2
        bench.runner.release()
        bench.runner.close()
        assert fresh.closed.is_set()

    run(scenario)


class SlowReader(RecordedRequest):
    """Reads nothing until the test says so."""

    def __init__(self, value: float) -> None:
        super().__init__(plan_of(), {"x": rows_of(value)}, now_ns())
        self.unread: list[Callable[[], None]] | None = []

    @property
    def is_congested(self) -> bool:
        return self.unread is not None

    def when_writable(self, callback: Callable[[], None]) -> None:
        assert self.unread is not None
        self.unread.append(callback)

    def read(self) -> None:
        unread, self.unread = self.unread or [], None
        for callback in unread:
            callback()


class Streaming(Executable):
    decoupled = True

    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        raise Unsupported("only streams")


class Chatty(Streaming):
    def stream(self, inputs: dict[str, Any], parameters: Any) -> Iterator[dict[str, Any]]:
        for _ in range(40):
            yield {"y": inputs["x"]}

    def close(self) -> None:
        """Nothing to free."""


def test_a_model_that_waits_for_a_slow_reader_does_not_hang() -> None:
    async def scenario() -> None:
        bench = Bench(Chatty(), execution_timeout_ns=SECOND)
        request = SlowReader(1)
        bench.in_flight += 1
        bench.runner.submit(request)
        await until(lambda: bench.runner._streams._running)
        (under_way,) = bench.runner._streams._running.values()
        await until(lambda: len(request.answers) == 16 and not under_way.requested_at)
        bench.runner.check_stuck(now_ns() + 100 * SECOND)
        assert len(request.answers) == 16
        request.read()
        await until(lambda: request.answers[-1] == "finished")
        assert len(request.answers) == 41
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)


class AsyncSteps(Streaming):
    """Answers twice; between, -1 waits for ever as it should, -2 holds its event loop until the gate is open."""

    is_async = True

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.ended: list[float] = []
        self.closed = threading.Event()

    async def stream(self, inputs: dict[str, Any], parameters: Any) -> AsyncIterator[dict[str, Any]]:
        value = inputs["x"].item()
        try:
            yield {"y": inputs["x"]}
            if value == -1:
                await asyncio.Event().wait()
            if value == -2:
                self.gate.wait()
            yield {"y": inputs["x"]}
        finally:
            self.ended.append(value)

    def close(self) -> None:
        self.closed.set()


def test_one_hanging_stream_of_an_asynchronous_model_ends_alone() -> None:
    async def scenario() -> None:
        executable = AsyncSteps()
        bench = Bench(executable, execution_timeout_ns=SECOND)
        stuck = bench.send(-1)
        await until(lambda: stuck.answers)

        def given_up() -> bool:
            # The step that hangs begins a moment after the previous response.
            bench.runner.check_stuck(now_ns() + 2 * SECOND)
            return isinstance(stuck.answers[-1], ModelFailed)

        await until(given_up)
        # Cancelled: its own clean-up has run, and the instance goes on.
        await until(lambda: executable.ended == [-1])
        other = bench.send(1)
        await until(lambda: other.answers[-1:] == ["finished"])
        bench.runner.check_stuck(now_ns() + 10 * SECOND)
        assert len(bench.runner.instances) == 1
        assert bench.in_flight == 0
        assert bench.runner.instances[0].streams == 0
        bench.runner.close()

    run(scenario)


def test_an_asynchronous_model_that_holds_its_loop_is_replaced() -> None:
    async def scenario() -> None:
        hung, fresh = AsyncSteps(), AsyncSteps()
        bench = Bench(hung, execution_timeout_ns=SECOND)
        bench.replacements = [fresh]
        stuck = bench.send(-2)
        await until(lambda: stuck.answers)
        behind = bench.send(1)
        await until(lambda: len(bench.runner._streams._running) == 2)
        await until(lambda: all(each.requested_at for each in bench.runner._streams._running.values()))
        now = now_ns()
        bench.runner.check_stuck(now + 2 * SECOND)
        assert all(isinstance(request.answers[-1], ModelFailed) for request in (stuck, behind))
        assert bench.in_flight == 0
        # It was cancelled and has not let go.
        bench.runner.check_stuck(now + 4 * SECOND)
        other = bench.send(1)
        await until(lambda: other.answers[-1:] == ["finished"])
        assert fresh.ended == [1]
        hung.gate.set()
        await until(hung.closed.is_set)
        bench.runner.close()

    run(scenario)


def test_unloading_ends_what_an_asynchronous_model_waits_for() -> None:
    async def scenario() -> None:
        executable = AsyncSteps()
        bench = Bench(executable)
        endless = bench.send(-1)
        await until(lambda: endless.answers)
        bench.runner.fail_all()
        bench.runner.release()
        bench.runner.close()
        assert isinstance(endless.answers[-1], Unavailable)
        await until(executable.closed.is_set)
        assert executable.ended == [-1]
        assert bench.in_flight == 0

    run(scenario)
