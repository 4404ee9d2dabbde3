"""Executables that overlap: the next batch is launched while one computes, as late as possible and in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from queued_requests import RecordedRequest
from runner_bench import Bench, run, until

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import DeadlineExceeded, ModelFailed, Unavailable
from isochrone.worker.backends.interface import Executable
from isochrone.worker.scheduling.batch_queue import QueueRules


class Overlapping(Executable):
    """Doubles. A batch ends when the test releases it; a value of 13 fails, alone or with others."""

    inline_allowed = False
    overlaps = True

    def __init__(self) -> None:
        self.launched: list[list[float]] = []
        self.collected: list[list[float]] = []
        self.endings = threading.Semaphore(0)
        self.fails_at_launch = False
        self.quick = False
        self.polled = 0
        #: A batch is being collected: its end is waited for.
        self.is_awaited = threading.Event()
        self.launching_threads: list[int] = []
        self.collecting_threads: list[int] = []
        self.closed = threading.Event()

    def launches_quickly(self, requests: Sequence[Any], rows: int) -> bool:
        return self.quick

    def launch_batch(self, requests: Sequence[Any], rows: int) -> Any:
        self.launching_threads.append(threading.get_ident())
        values = [request.inputs["x"] for request in requests]
        self.launched.append([float(value[0, 0]) for value in values])
        if self.fails_at_launch and any((value == 13).any() for value in values):
            raise RuntimeError("thirteen at launch")
        return values

    def batch_is_complete(self, flight: Any) -> bool:
        self.polled += 1
        return self.endings._value > 0

    def collect_batch(self, flight: Any) -> list[Any]:
        self.is_awaited.set()
        self.endings.acquire()
        self.collecting_threads.append(threading.get_ident())
        self.collected.append([float(value[0, 0]) for value in flight])
        if any((value == 13).any() for value in flight):
            raise RuntimeError("thirteen")
        return [{"y": value * 2} for value in flight]

    def execute(self, inputs: Any, outputs: tuple[str, ...] | None) -> Any:
        if (inputs["x"] == 13).any():
            raise RuntimeError("thirteen alone")
        return {"y": inputs["x"] * 2}

    def close(self) -> None:
        self.closed.set()


async def end(bench: Bench) -> None:
    bench.runner.release()
    await asyncio.to_thread(bench.runner.close)


def let_end(executable: Overlapping, batches: int) -> None:
    executable.endings.release(batches)


async def values(bench: Bench, *requests: RecordedRequest) -> list[float]:
    return [answer["y"].item() for answer in await bench.answers(*requests)]


def test_a_full_batch_is_launched_behind_the_running_one() -> None:
    async def main() -> None:
        executable = Overlapping()
        bench = Bench(executable, max_rows=2, run_ns=SECOND)
        requests = [bench.send(value) for value in (1, 2, 3, 4, 5)]
        await until(lambda: len(executable.launched) == 2)
        # Nothing has ended, and the third batch is neither full nor due.
        assert executable.launched == [[1, 2], [3, 4]]
        assert not executable.collected
        let_end(executable, 3)
        await until(lambda: not bench.in_flight)
        assert executable.launched == executable.collected == [[1, 2], [3, 4], [5]]
        assert await values(bench, *requests) == [2, 4, 6, 8, 10]
        await end(bench)

    run(main)


def test_a_batch_that_is_not_full_waits_until_the_running_one_is_about_to_end() -> None:
    async def main() -> None:
        executable = Overlapping()
        # Runs are expected to take less than a launch needs: the next batch is due at once.
        bench = Bench(executable, max_rows=8, run_ns=MILLISECOND // 100)
        first = bench.send(1)
        await until(lambda: executable.launched)
        second = bench.send(2)
        await until(lambda: len(executable.launched) == 2)
        assert not executable.collected
        # One is behind the running one already: the third waits for an end.
        third = bench.send(3)
        let_end(executable, 3)
        await until(lambda: not bench.in_flight)
        assert await values(bench, first, second, third) == [2, 4, 6]
        await end(bench)

    run(main)


def test_one_bad_request_fails_alone_and_its_mates_are_served() -> None:
    async def main(at_launch: bool) -> None:
        executable = Overlapping()
        executable.fails_at_launch = at_launch
        bench = Bench(executable, max_rows=4, run_ns=SECOND)
        requests = [bench.send(value) for value in (1, 13, 3)]
        let_end(executable, 1)
        await until(lambda: not bench.in_flight)
        (error,) = await bench.answers(requests[1])
        assert isinstance(error, ModelFailed)
        assert "thirteen alone" in error.message
        assert await values(bench, requests[0], requests[2]) == [2, 6]
        await end(bench)

    run(lambda: main(False))
    run(lambda: main(True))


def test_an_unload_that_waits_no_longer_fails_both_batches() -> None:
    async def main() -> None:
        executable = Overlapping()
        bench = Bench(executable, max_rows=1, run_ns=SECOND)
        requests = [bench.send(value) for value in (1, 2, 3)]
        await until(lambda: len(executable.launched) == 2)
        bench.runner.fail_all()
        assert all(isinstance(answer, Unavailable) for answer in await bench.answers(*requests))
        let_end(executable, 2)
        await end(bench)
        # Its thread frees it when the device has ended.
        assert await asyncio.to_thread(executable.closed.wait, 60)

    run(main)


def test_a_hung_device_costs_both_batches_and_the_instance_is_replaced() -> None:
    async def main() -> None:
        stuck, fresh = Overlapping(), Overlapping()
        bench = Bench(stuck, max_rows=1, run_ns=MILLISECOND, execution_timeout_ns=1)
        bench.replacements = [fresh]
        requests = [bench.send(value) for value in (1, 2)]
        await until(lambda: len(stuck.launched) == 2)
        bench.runner.check_stuck(now_ns())
        assert all(isinstance(answer, ModelFailed) for answer in await bench.answers(*requests))
        let_end(fresh, 1)
        later = bench.send(5)
        await until(lambda: not bench.in_flight)
        assert await values(bench, later) == [10]
        let_end(stuck, 2)
        await end(bench)
        assert await asyncio.to_thread(stuck.closed.wait, 60)

    run(main)


def test_requests_that_were_cancelled_cost_nothing() -> None:
    async def main() -> None:
        executable = Overlapping()
        bench = Bench(executable, max_rows=2, run_ns=SECOND)
        requests = [bench.send(value) for value in (1, 2, 3)]
        await until(lambda: executable.launched)
        requests[2].cancelled = True
        let_end(executable, 1)
        await until(lambda: not bench.in_flight)
        assert executable.launched[0] == [1, 2]
        assert not np.isin(3, [value for batch in executable.launched for value in batch])
        await end(bench)

    run(main)


def test_a_quick_launch_needs_no_thread_but_the_batch_behind_it_does() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = True
        bench = Bench(executable, max_rows=1, run_ns=SECOND)
        requests = [bench.send(value) for value in (1, 2, 3)]
        await until(lambda: len(executable.launched) == 2)
        here = threading.get_ident()
        assert executable.launching_threads[0] == here
        assert executable.launching_threads[1] != here
        let_end(executable, 3)
        assert await values(bench, *requests) == [2, 4, 6]
        await until(lambda: not bench.in_flight)
        await end(bench)
        assert executable.closed.is_set()

    run(main)


def test_a_quick_launch_that_fails_fails_its_request_alone() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = executable.fails_at_launch = True
        bench = Bench(executable, max_rows=2, run_ns=SECOND)
        bad, good = bench.send(13), bench.send(4)
        (error,) = await bench.answers(bad)
        assert isinstance(error, ModelFailed)
        assert await values(bench, good) == [8]
        await until(lambda: not bench.in_flight)
        await end(bench)

    run(main)


def test_the_loop_polls_for_a_short_batch_while_nothing_else_is_there() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = executable.polls = True
        bench = Bench(executable, max_rows=1, run_ns=2 * MILLISECOND)
        let_end(executable, 1)
        assert await values(bench, bench.send(1)) == [2]
        assert executable.polled
        assert executable.collecting_threads == [threading.get_ident()]
        await end(bench)
        assert executable.closed.is_set()

    run(main)


def test_polling_ends_when_a_batch_follows_and_answers_stay_in_order() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = executable.polls = True
        bench = Bench(executable, max_rows=1, run_ns=2 * MILLISECOND)
        requests = [bench.send(value) for value in (1, 2, 3)]
        await until(lambda: len(executable.launched) == 2)
        let_end(executable, 3)
        assert await values(bench, *requests) == [2, 4, 6]
        assert executable.collected == [[1.0], [2.0], [3.0]]
        assert executable.collecting_threads[0] != threading.get_ident()
        await end(bench)

    run(main)


def test_polling_ends_when_the_batch_takes_longer_than_expected() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = executable.polls = True
        bench = Bench(executable, max_rows=1, run_ns=MILLISECOND)
        late = bench.send(1)
        await until(executable.is_awaited.is_set)
        polled = executable.polled
        await asyncio.sleep(0.01)
        assert executable.polled == polled > 0
        let_end(executable, 1)
        assert await values(bench, late) == [2]
        assert executable.collecting_threads != [threading.get_ident()]
        await end(bench)

    run(main)


def test_a_long_batch_is_not_polled_for() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = executable.polls = True
        bench = Bench(executable, max_rows=1, run_ns=SECOND)
        let_end(executable, 1)
        assert await values(bench, bench.send(1)) == [2]
        assert not executable.polled
        await end(bench)

    run(main)


def test_a_polled_batch_that_fails_is_run_again_off_the_loop() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = executable.polls = executable.fails_at_launch = True
        bench = Bench(executable, max_rows=1, run_ns=MILLISECOND)
        (error,) = await bench.answers(bench.send(13))
        assert isinstance(error, ModelFailed)
        assert not executable.polled
        await end(bench)

    run(main)


def test_a_polled_batch_that_is_given_up_is_collected_before_the_model_is_freed() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = executable.polls = True
        bench = Bench(executable, max_rows=1, run_ns=2 * MILLISECOND)
        request = bench.send(1)
        await until(lambda: bool(executable.launched))
        bench.runner.fail_all()
        (error,) = await bench.answers(request)
        assert isinstance(error, Unavailable)
        bench.runner.release()
        await asyncio.to_thread(bench.runner.close)
        await asyncio.sleep(0.05)
        assert not executable.closed.is_set()
        let_end(executable, 1)
        await until(executable.closed.is_set)
        assert executable.collected == [[1.0]]

    run(main)


async def answered_alone(bench: Bench, executable: Overlapping, count: int) -> None:
    """Sends requests, each after the answer of the one before."""
    for value in range(count):
        let_end(executable, 1)
        assert await values(bench, bench.send(value)) == [2 * value]
        await until(lambda: not bench.in_flight)


def test_requests_that_come_one_at_a_time_are_launched_before_their_turn_ends() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = True
        bench = Bench(executable, max_rows=8, run_ns=SECOND)
        for value in range(6):
            before = len(executable.launched)
            request = bench.send(value)
            assert len(executable.launched) - before == (value >= 4)
            let_end(executable, 1)
            assert await values(bench, request) == [2 * value]
            assert 0 < request.enqueued <= request.dispatched <= request.compute_start
        assert executable.launched == [[0], [1], [2], [3], [4], [5]]
        await end(bench)

    run(main)


def test_after_a_burst_requests_of_one_turn_share_a_batch_again() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = True
        bench = Bench(executable, max_rows=8, run_ns=MILLISECOND // 100)
        await answered_alone(bench, executable, 4)
        executable.launched.clear()
        for _ in range(2):
            requests = [bench.send(value) for value in (5, 6, 7)]
            let_end(executable, 2)
            assert await values(bench, *requests) == [10, 12, 14]
            await until(lambda: not bench.in_flight)
        # The first of the first burst could not know.
        assert executable.launched == [[5], [6, 7], [5, 6, 7]]
        await end(bench)

    run(main)


def test_without_batches_no_request_waits_for_the_end_of_its_turn() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = True
        bench = Bench(executable, max_rows=1, run_ns=SECOND)
        request = bench.send(1)
        assert executable.launched == [[1]]
        let_end(executable, 1)
        assert await values(bench, request) == [2]
        await end(bench)

    run(main)


def test_a_lone_request_that_would_be_late_is_rejected_and_not_launched() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = True
        bench = Bench(executable, max_rows=8, run_ns=SECOND)
        await answered_alone(bench, executable, 5)
        executable.launched.clear()
        with pytest.raises(DeadlineExceeded):
            bench.send(1, now_ns() + SECOND // 2)
        assert not executable.launched
        assert bench.in_flight == 0
        await end(bench)

    run(main)


def test_a_model_that_delays_its_batches_launches_nothing_at_once() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = True
        bench = Bench(executable, rules=QueueRules(max_rows=8, delay_ns=MILLISECOND))
        await answered_alone(bench, executable, 5)
        first = bench.send(1)
        assert len(executable.launched) == 5
        second = bench.send(2)
        let_end(executable, 1)
        assert await values(bench, first, second) == [2, 4]
        assert executable.launched[5:] == [[1, 2]]
        await end(bench)

    run(main)


class Turns:
    """Counts the turns of the running loop."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.number += 1
        self._handle = self._loop.call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


def test_a_lone_request_is_launched_in_its_own_turn_and_written_in_the_turn_that_sees_its_end() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = executable.polls = True
        bench = Bench(executable, max_rows=1, run_ns=2 * MILLISECOND)
        turns = Turns()
        written: list[tuple[int, int]] = []
        bench.stage.flushes.append(lambda: written.append((turns.number, len(request.answers))))
        await asyncio.sleep(0)
        let_end(executable, 1)
        sent = turns.number
        request = bench.send(7)
        assert executable.launched == [[7]]
        await until(lambda: written)
        # The first poll is in the turn that follows, and it sees the end.
        assert executable.polled == 1
        assert written == [(sent + 1, 1)]
        turns.stop()
        await end(bench)

    run(main)


def test_answers_of_a_batch_that_a_thread_collects_are_written_with_those_of_others() -> None:
    async def main() -> None:
        executable = Overlapping()
        executable.quick = True
        bench = Bench(executable, max_rows=8, run_ns=2 * MILLISECOND)
        written: list[int] = []
        bench.stage.flushes.append(lambda: written.append(1))
        await answered_alone(bench, executable, 6)
        assert not written
        await end(bench)

    run(main)
