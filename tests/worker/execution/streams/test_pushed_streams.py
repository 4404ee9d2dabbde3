"""Decoupled models that push their responses: during the run, after it, from other threads, too fast, and never."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from queued_requests import RecordedRequest, plan_of, rows_of
from runner_bench import Bench, run, until

from isochrone.clock import SECOND, now_ns
from isochrone.errors import ModelFailed, Unavailable
from isochrone.worker.backends.interface import Executable


class Pushing(Executable):
    """Runs ``script`` with the outlet of each request."""

    decoupled = True
    takes_requests = True
    inline_allowed = False

    def __init__(self, script: Callable[[Any], Any]) -> None:
        self._script = script
        self.closed = threading.Event()

    def execute(self, inputs: Any, outputs: Any) -> Any:
        raise AssertionError("it takes requests")

    def execute_requests(self, requests: Sequence[Any]) -> list[Any]:
        return [self._script(self.outlet_of(request)) for request in requests]

    def close(self) -> None:
        self.closed.set()


def bench_of(script: Callable[[Any], Any], **options: Any) -> Bench:
    executable = Pushing(script)
    bench = Bench(executable, **options)
    executable.outlet_of = bench.runner.outlet_of
    return bench


def close(bench: Bench) -> None:
    bench.runner.release()
    bench.runner.close()


def test_the_last_response_ends_the_stream() -> None:
    def script(outlet: Any) -> None:
        for value in range(3):
            outlet.send({"y": value}, value == 2)

    async def scenario() -> None:
        bench = bench_of(script)
        request = bench.send(1)
        await until(lambda: request.answers[-1:] == ["finished"])
        assert request.answers == [{"y": 0}, {"y": 1}, {"y": 2}, "finished"]
        assert bench.in_flight == 0
        close(bench)

    run(scenario)


def test_the_end_alone_and_nothing_at_all() -> None:
    async def scenario() -> None:
        bench = bench_of(lambda outlet: outlet.send(None, True))
        request = bench.send(1)
        await until(lambda: request.answers)
        assert request.answers == ["finished"]
        close(bench)

    run(scenario)


def test_an_error_ends_the_stream_wherever_it_comes() -> None:
    def script(outlet: Any) -> Any:
        outlet.send({"y": 0}, False)
        outlet.send(ModelFailed("in the middle"), False)
        outlet.send({"y": 1}, True)

    async def scenario() -> None:
        bench = bench_of(script)
        request = bench.send(1)
        await until(lambda: bench.in_flight == 0)
        await asyncio.sleep(0)
        assert request.answers[0] == {"y": 0}
        assert isinstance(request.answers[1], ModelFailed)
        assert len(request.answers) == 2
        close(bench)

    run(scenario)


def test_a_run_that_raises_or_returns_an_error() -> None:
    def raises(outlet: Any) -> None:
        raise ValueError("broken")

    async def scenario() -> None:
        for script, words in ((raises, "broken"), (lambda outlet: ModelFailed("returned"), "returned")):
            bench = bench_of(script)
            request = bench.send(1)
            await until(lambda asked=request: asked.answers)
            assert words in str(request.answers[0])
            assert bench.in_flight == 0
            close(bench)

    run(scenario)


def test_responses_after_the_run_leave_the_instance_free() -> None:
    outlets: list[Any] = []

    async def scenario() -> None:
        bench = bench_of(outlets.append)
        first, second = bench.send(1), bench.send(2)
        await until(lambda: len(outlets) == 2)  # one instance: the second began after the first had returned
        assert first.answers == second.answers == []

        def answer() -> None:
            for value, outlet in enumerate(outlets):
                outlet.send({"y": value}, False)
                outlet.send(None, True)

        thread = threading.Thread(target=answer)
        thread.start()
        await until(lambda: bench.in_flight == 0)
        thread.join()
        assert [first.answers, second.answers] == [[{"y": 0}, "finished"], [{"y": 1}, "finished"]]
        close(bench)

    run(scenario)


def test_unloading_ends_what_never_ends() -> None:
    outlets: list[Any] = []

    async def scenario() -> None:
        bench = bench_of(outlets.append)
        request = bench.send(1)
        await until(lambda: outlets)
        bench.runner.fail_all()
        close(bench)
        assert isinstance(request.answers[0], Unavailable)
        assert outlets[0].is_cancelled()
        outlets[0].send({"y": 1}, True)
        await asyncio.sleep(0)
        assert len(request.answers) == 1
        assert bench.in_flight == 0

    run(scenario)


def test_a_sender_that_is_asked_for_too_late_leads_nowhere() -> None:
    entered, gate, found = threading.Event(), threading.Event(), []

    class Late(Pushing):
        def execute_requests(self, requests: Sequence[Any]) -> list[Any]:
            entered.set()
            gate.wait()
            found.append(self.outlet_of(requests[0]))
            return [None]

    async def scenario() -> None:
        executable = Late(lambda outlet: None)
        bench = Bench(executable)
        executable.outlet_of = bench.runner.outlet_of
        request = bench.send(1)
        await until(entered.is_set)
        bench.runner.fail_all()
        gate.set()
        await until(lambda: found)
        assert found[0].is_cancelled()
        found[0].send({"y": 1}, True)
        await asyncio.sleep(0)
        assert len(request.answers) == 1
        close(bench)

    run(scenario)


def test_a_stream_that_takes_too_long_is_given_up_and_one_whose_run_hangs_costs_its_instance() -> None:
    gate = threading.Event()

    async def scenario() -> None:
        bench = bench_of(lambda outlet: gate.wait() and None, execution_timeout_ns=SECOND)
        fresh = Pushing(lambda outlet: outlet.send({"y": 7}, True))
        fresh.outlet_of = bench.runner.outlet_of
        bench.replacements = [fresh]
        stuck, waiting = bench.send(1), bench.send(2)
        await until(lambda: bench.runner.pending == 1)
        bench.runner.check_stuck(now_ns())
        assert stuck.answers == []
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        assert "execution_timeout_ms (1000)" in str(stuck.answers[0])
        await until(lambda: waiting.answers)
        assert waiting.answers == [{"y": 7}, "finished"]
        gate.set()
        assert bench.in_flight == 0
        close(bench)

    run(scenario)


class SlowReader(RecordedRequest):
    """Reads nothing until the test says so."""

    def __init__(self) -> None:
        super().__init__(plan_of(), {"x": rows_of(1)}, now_ns(), now_ns() + 100 * SECOND)
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


def test_a_fast_model_waits_for_a_slow_reader() -> None:
    async def scenario() -> None:
        sent: list[int] = []

        def script(outlet: Any) -> None:
            for value in range(60):
                outlet.send({"y": value}, False)
                sent.append(value)
            outlet.send(None, True)

        bench, request = bench_of(script), SlowReader()
        bench.submit(request)
        await until(lambda: request.unread is not None and len(request.unread) == 16)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(sent) == 16
        request.read()
        await until(lambda: request.answers[-1:] == ["finished"])
        assert [each["y"] for each in request.answers[:-1]] == list(range(60))
        close(bench)

    run(scenario)


def test_a_model_that_waits_for_a_reader_who_has_left_goes_on() -> None:
    async def scenario() -> None:
        over = threading.Event()

        def script(outlet: Any) -> None:
            while not outlet.is_cancelled():
                outlet.send({"y": 1}, False)
            over.set()
            outlet.send(None, True)

        bench, request = bench_of(script), SlowReader()
        bench.submit(request)
        await until(lambda: request.unread is not None and len(request.unread) == 16)
        request.cancelled = True
        await until(over.is_set)
        await until(lambda: bench.in_flight == 0)
        assert request.answers[-1] == "dropped"
        close(bench)

    run(scenario)
