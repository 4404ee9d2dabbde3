"""Which runs happen on the loop's thread, on machines that are quiet and on machines that are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from queued_requests import RecordedRequest, plan_of, rows_of
from runner_bench import Bench, Gated, run, until

from isochrone.clock import MICROSECOND, MILLISECOND, SECOND, now_ns
from isochrone.worker.execution.inline import watchdog as watchdog_module
from isochrone.worker.execution.inline.compute_stage import STAGE_NS
from isochrone.worker.execution.inline.inline_runs import INLINE_NS, InlineRuns
from isochrone.worker.execution.inline.watchdog import InlineWatchdog
from isochrone.worker.scheduling.latency_curve import LatencyCurve


class Preemptions:
    """What the kernel says of the thread."""

    def __init__(self) -> None:
        self.ru_nivcsw = 0


@pytest.fixture
def preemptions(monkeypatch: pytest.MonkeyPatch) -> Preemptions:
    found = Preemptions()
    monkeypatch.setattr(watchdog_module, "getrusage", lambda who: found)
    return found


def inline_runs(loop: Any, typical: int = 20 * MICROSECOND) -> InlineRuns:
    curve = LatencyCurve(1)
    curve.observe(1, typical)
    runs = InlineRuns("m", loop, 1, InlineWatchdog())
    runs.begin(curve, only_computes=True)
    return runs


def with_loop(scenario: Callable[[Any], None]) -> None:
    async def main() -> None:
        scenario(asyncio.get_running_loop())

    asyncio.run(main())


def test_a_long_run_in_a_hundred_does_not_change_what_is_typical() -> None:
    def scenario(loop: Any) -> None:
        runs = inline_runs(loop)
        for number in range(3000):
            runs.observe(1, 4 * MILLISECOND if number % 100 == 0 else 20 * MICROSECOND, number)
            assert runs.typical[1] <= 25 * MICROSECOND

    with_loop(scenario)


def test_a_model_that_has_become_slow_leaves_and_one_that_is_fast_again_comes_back() -> None:
    def scenario(loop: Any) -> None:
        runs = inline_runs(loop)
        for _ in range(20):
            runs.observe(1, 400 * MICROSECOND, 0)
        assert runs.typical[1] > runs.limit_ns
        runs.retry(SECOND // 2)
        assert runs.typical[1] > runs.limit_ns
        runs.retry(SECOND)
        assert runs.typical[1] <= runs.limit_ns
        runs.observe(1, 30 * MICROSECOND, SECOND)
        assert (runs.typical[1], runs.retrying) == (30 * MICROSECOND, set())

    with_loop(scenario)


def test_one_run_in_ever_longer_times_tells_whether_a_slow_model_is_still_slow() -> None:
    def scenario(loop: Any) -> None:
        runs = inline_runs(loop, typical=390 * MICROSECOND)
        inline = 0
        for tick in range(6000):  # ten minutes
            now = now_ns() + tick * 100 * MILLISECOND
            runs.retry(now)
            for _ in range(50):
                if runs.typical[1] <= runs.limit_ns:
                    inline += 1
                    if runs.retrying:
                        runs.observe(1, 390 * MICROSECOND, now)
        assert inline <= 20

    with_loop(scenario)


def test_nothing_is_forgotten_while_inline_runs_pause(preemptions: Preemptions) -> None:
    def scenario(loop: Any) -> None:
        runs = inline_runs(loop, typical=900 * MICROSECOND)
        runs.overran(1, 30 * MILLISECOND, SECOND, 1)
        assert runs.limit_ns == 0
        for tick in range(1000):
            runs.retry(now_ns() + tick * SECOND)
        assert runs.typical[1] == 900 * MICROSECOND
        runs.close()

    with_loop(scenario)


def test_faster_runs_on_the_thread_correct_a_warm_up_in_a_busy_moment() -> None:
    def scenario(loop: Any) -> None:
        runs = inline_runs(loop, typical=3 * MILLISECOND)
        for _ in range(10):
            runs.ran_on_thread(1, 300 * MICROSECOND)
        assert runs.typical[1] == 300 * MICROSECOND
        runs.ran_on_thread(1, 5 * MILLISECOND)
        assert runs.typical[1] == 300 * MICROSECOND, "a thread may wait for the interpreter"

    with_loop(scenario)


def test_a_model_of_milliseconds_is_not_tried_again() -> None:
    def scenario(loop: Any) -> None:
        runs = inline_runs(loop, typical=5 * MILLISECOND)
        for tick in range(1000):
            runs.retry(now_ns() + tick * SECOND)
        assert runs.typical[1] == 5 * MILLISECOND

    with_loop(scenario)


def test_overruns_while_other_processes_ran_are_not_the_models(preemptions: Preemptions) -> None:
    def scenario(loop: Any) -> None:
        runs = inline_runs(loop)
        for number in range(1, 100):
            preemptions.ru_nivcsw += 1
            runs.overran(1, 10 * MILLISECOND, number * MILLISECOND, 20 * number)
            assert runs.limit_ns == INLINE_NS

    with_loop(scenario)


def test_a_long_overrun_or_two_in_a_row_are_the_models_whatever_else_ran(preemptions: Preemptions) -> None:
    def scenario(loop: Any) -> None:
        for overruns in (((30 * MILLISECOND, 7),), ((5 * MILLISECOND, 7), (5 * MILLISECOND, 8))):
            runs = inline_runs(loop)
            for elapsed, number in overruns:
                assert runs.limit_ns == INLINE_NS
                preemptions.ru_nivcsw += 1
                runs.overran(1, elapsed, SECOND, number)
            assert runs.limit_ns == 0
            runs.close()

    with_loop(scenario)


def test_overruns_of_the_model_itself_send_it_to_its_thread(preemptions: Preemptions) -> None:
    def scenario(loop: Any) -> None:
        runs = inline_runs(loop)
        preemptions.ru_nivcsw = 7
        runs._watchdog.was_preempted()
        for number in range(40):
            runs.overran(1, 3 * MILLISECOND, 2 * SECOND + number * SECOND // 4, 50 + 50 * number)
            assert runs.limit_ns == INLINE_NS, "a few short overruns may be stalls of the machine"
        paused_after = 0
        while runs.limit_ns:
            paused_after += 1
            runs.overran(1, 3 * MILLISECOND, 20 * SECOND + paused_after * 50 * MILLISECOND, 5000 + 50 * paused_after)
        assert 5 <= paused_after <= 10
        runs.close()

    with_loop(scenario)


def test_pauses_double_and_are_forgotten_after_a_calm_time(preemptions: Preemptions) -> None:
    def scenario(loop: Any) -> None:
        runs = inline_runs(loop)
        now, pauses = now_ns(), []
        for wait in (1, 1, 1, 200):
            now += wait * SECOND
            runs.overran(1, 30 * MILLISECOND, now, 1)
            assert runs._again is not None
            pauses.append(runs._pause)
            runs._again.cancel()
            runs._allow()
            runs._ended = now
        assert pauses == [2.0, 4.0, 8.0, 2.0]

    with_loop(scenario)


class Named(Gated):
    """Notes the thread of each run."""

    inline_allowed = True
    only_computes = True

    def __init__(self, takes: int = 0) -> None:
        super().__init__()
        self.threads: list[str] = []
        self.takes = takes

    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        ends = now_ns() + self.takes
        while now_ns() < ends:
            pass
        self.threads.append(threading.current_thread().name)
        return super().execute(inputs, outputs)


def send_at(bench: Bench, arrived: int) -> RecordedRequest:
    request = RecordedRequest(plan_of(), {"x": rows_of(1)}, arrived, now_ns() + 100 * SECOND)
    bench.submit(request)
    return request


async def one_at_a_time(bench: Bench, requests: int) -> None:
    for _ in range(requests):
        request = send_at(bench, bench.runner._last_answer + MILLISECOND)
        await until(lambda request=request: request.answers)  # type: ignore[misc]


def test_a_longer_run_happens_inline_while_requests_come_one_at_a_time() -> None:
    async def scenario() -> None:
        model = Named(takes=250 * MICROSECOND)
        bench = Bench(model, max_rows=1, run_ns=300 * MICROSECOND)
        await one_at_a_time(bench, 12)
        assert model.threads[0] == "m-1"
        assert model.threads[-4:] == ["MainThread"] * 4
        # Two at a time: the second one belongs to a burst, and both use the thread from then on.
        model.threads.clear()
        for _ in range(4):
            pair = [send_at(bench, bench.runner._last_answer) for _ in range(2)]
            await until(lambda pair=pair: all(each.answers for each in pair))  # type: ignore[misc]
        assert model.threads[1:] == ["m-1"] * 7

    run(scenario)


def test_a_longer_run_of_code_that_may_wait_uses_its_thread() -> None:
    async def scenario() -> None:
        model = Named(takes=250 * MICROSECOND)
        model.only_computes = False
        bench = Bench(model, max_rows=1, run_ns=300 * MICROSECOND)
        await one_at_a_time(bench, 12)
        assert set(model.threads) == {"m-1"}

    run(scenario)


def test_a_longer_run_uses_its_thread_while_another_model_is_asked_too() -> None:
    async def scenario() -> None:
        model = Named(takes=250 * MICROSECOND)
        bench = Bench(model, max_rows=1, run_ns=300 * MICROSECOND)
        for _ in range(12):
            bench.runner._watchdog.last_change = bench.runner._last_answer
            await one_at_a_time(bench, 1)
        assert set(model.threads) == {"m-1"}

    run(scenario)


def test_longer_runs_without_deadlines_stay_inline_while_only_this_model_is_asked() -> None:
    async def scenario() -> None:
        model = Named()
        bench = Bench(model, max_rows=1, run_ns=180 * MICROSECOND)
        for _ in range(4):
            now = now_ns()
            request = RecordedRequest(plan_of(), {"x": rows_of(1)}, now)
            bench.submit(request)
            assert request.answers
        assert set(model.threads) == {"MainThread"}
        two = Bench(Named(), Named(), max_rows=1, run_ns=180 * MICROSECOND)
        request = RecordedRequest(plan_of(), {"x": rows_of(1)}, now_ns())
        two.submit(request)
        assert not request.answers, "two instances run on their threads, at the same time"
        await until(lambda: request.answers)

    run(scenario)


def test_long_runs_end_after_a_millisecond_of_a_turn_and_the_others_are_queued() -> None:
    async def scenario() -> None:
        model = Named(takes=180 * MICROSECOND)
        bench = Bench(model, max_rows=1, run_ns=180 * MICROSECOND, stage_ns=STAGE_NS)
        requests = [RecordedRequest(plan_of(), {"x": rows_of(1)}, now_ns()) for _ in range(20)]
        bench.stage.begin()
        for request in requests:
            bench.in_flight += 1
            bench.runner.submit(request)
        bench.stage.end()
        answered = sum(bool(request.answers) for request in requests)
        assert 1 <= answered <= 6
        assert bench.runner.pending == 20 - answered
        turns = 0
        while bench.runner.pending:
            await asyncio.sleep(0)
            turns += 1
        await until(lambda: all(request.answers for request in requests))
        assert turns >= 2

    run(scenario)


def test_a_turn_of_a_batching_model_runs_as_a_batch_or_one_by_one_and_every_answer_is_right() -> None:
    async def scenario() -> None:
        model = Named()
        bench = Bench(model, max_rows=8, run_ns=10 * MICROSECOND)

        def turn(*values: float) -> None:
            model.runs.clear()
            requests = [RecordedRequest(plan_of(), {"x": rows_of(value)}, now_ns()) for value in values]
            bench.stage.begin()
            for request in requests:
                bench.in_flight += 1
                bench.runner.submit(request)
            bench.stage.end()
            assert [request.answers[0]["y"].item() for request in requests] == [2 * value for value in values]

        # No trials of the other way.
        bench.runner._gathering._tried = [now_ns() + SECOND] * 32
        turn(3)
        assert model.runs == [1]
        turn(1, 2, 3, 4)
        assert model.runs == [4], "a batch, until it is known what it costs"
        bench.runner._gathering._alone = float(SECOND)
        turn(*range(20))
        assert model.runs == [8, 8, 4]
        bench.runner._gathering._alone = 1.0
        bench.runner._gathering._together = [float(SECOND)] * 32
        turn(1, 2, 3)
        assert model.runs == [1, 1, 1], "each by itself, since batches are dear"
        assert bench.in_flight == 0

    run(scenario)
