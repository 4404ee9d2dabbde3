"""Answers that an executable sends itself, before, while or after its run is settled, from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from queued_requests import RecordedRequest, plan_of
from runner_bench import run, until

from isochrone.clock import SECOND, now_ns
from isochrone.errors import ModelFailed
from isochrone.worker.execution.batches.late_answers import LateAnswers


def request() -> RecordedRequest:
    return RecordedRequest(plan_of())


def on_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


class Late:
    def __init__(self) -> None:
        self.answered: list[tuple[Any, Any]] = []
        self.late = LateAnswers(asyncio.get_running_loop(), lambda *answer: self.answered.append(answer))


@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_whichever_comes_second_answers(is_first: bool, is_error: bool) -> None:
    async def scenario() -> None:
        bench, asked = Late(), request()
        answer: Any = ModelFailed("no") if is_error else {"y": 1}
        outlet = bench.late.outlet_of(asked)
        if is_first:
            on_thread(lambda: outlet.send(answer, True))
            await asyncio.sleep(0)
            assert bench.answered == []
            bench.late.expect(asked)
        else:
            bench.late.expect(asked)
            on_thread(lambda: outlet.send(answer, True))
        await until(lambda: bench.answered)
        assert bench.answered == [(asked, answer)]
        assert bench.late.clear() == []

    run(scenario)


def test_a_sender_that_is_asked_for_after_the_run() -> None:
    """The outlet that is expected answers, not a second one."""

    async def scenario() -> None:
        bench, asked = Late(), request()
        bench.late.expect(asked)
        on_thread(lambda: bench.late.outlet_of(asked).send({"y": 1}, True))
        await until(lambda: bench.answered)
        assert bench.answered == [(asked, {"y": 1})]

    run(scenario)


def test_only_the_first_answer_counts() -> None:
    async def scenario() -> None:
        bench, asked = Late(), request()
        outlet = bench.late.outlet_of(asked)
        bench.late.expect(asked)
        outlet.send({"y": 1}, False)
        outlet.send({"y": 2}, True)
        outlet.send(None, True)
        await until(lambda: bench.answered)
        await asyncio.sleep(0)
        assert bench.answered == [(asked, {"y": 1})]

    run(scenario)


def test_what_was_answered_otherwise_is_not_answered_again() -> None:
    async def scenario() -> None:
        bench, asked = Late(), request()
        outlet = bench.late.outlet_of(asked)
        bench.late.expect(asked)
        bench.late.forget(asked)
        outlet.send({"y": 1}, True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert bench.answered == []

    run(scenario)


def test_answers_that_do_not_come() -> None:
    async def scenario() -> None:
        bench = Late()
        running, expected = request(), request()
        bench.late.outlet_of(running)
        bench.late.expect(expected)
        assert bench.late.overdue(now_ns(), SECOND) == []
        assert bench.late.overdue(now_ns() + 2 * SECOND, SECOND) == [expected]
        assert bench.late.clear() == [expected]
        assert bench.late.overdue(now_ns() + 2 * SECOND, SECOND) == []

    run(scenario)


def test_a_model_may_ask_whether_its_caller_is_there() -> None:
    async def scenario() -> None:
        bench, asked = Late(), request()
        outlet = bench.late.outlet_of(asked)
        assert not outlet.is_cancelled()
        asked.cancelled = True
        assert outlet.is_cancelled()

    run(scenario)


def test_an_answer_after_the_loop_has_ended_is_dropped() -> None:
    kept: list[Any] = []

    async def scenario() -> None:
        bench, asked = Late(), request()
        kept.append(bench.late.outlet_of(asked))
        bench.late.expect(asked)

    run(scenario)
    kept[0].send({"y": 1}, True)


def test_many_threads_at_once() -> None:
    async def scenario() -> None:
        bench = Late()
        asked = [request() for _ in range(200)]
        barrier = threading.Barrier(4)

        def answer(part: list[RecordedRequest]) -> None:
            barrier.wait()
            for each in part:
                bench.late.outlet_of(each).send({"y": id(each)}, True)

        threads = [threading.Thread(target=answer, args=(asked[start::4],)) for start in range(4)]
        for thread in threads:
            thread.start()
        for each in asked:
            bench.late.expect(each)
            await asyncio.sleep(0)
        await until(lambda: len(bench.answered) == len(asked))
        for thread in threads:
            thread.join()
        assert {each: answer["y"] for each, answer in bench.answered} == {each: id(each) for each in asked}
        assert bench.late.clear() == []

    run(scenario)
