"""Runs that begin and end on the loop's thread, without the instance's thread; the test gives their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from queued_requests import RecordedRequest, plan_of, rows_of
from runner_bench import Bench, Gated, run, until

from isochrone.clock import NEVER, SECOND, now_ns
from isochrone.errors import Cancelled, DeadlineExceeded, InvalidArgument, ModelFailed, Unavailable
from isochrone.protocol.messages import InferRequest


class Begins(Gated):
    """Begins runs on the loop, except those that contain ``refused``."""

    takes_requests = True
    begins_on_loop = True
    refused = 1000

    def __init__(self) -> None:
        super().__init__()
        #: Runs that have begun, and what takes their answers.
        self.begun: list[tuple[list[float], Any]] = []
        self.on_thread: list[list[float]] = []

    def begin_requests(self, requests: Sequence[InferRequest], done: Any) -> bool:
        values = [request.inputs["x"].item() for request in requests]
        if self.refused in values:
            return False
        self.begun.append((values, done))
        return True

    def execute_requests(self, requests: Sequence[InferRequest]) -> list[Any]:
        values = [request.inputs["x"].item() for request in requests]
        self.on_thread.append(values)
        return [{"y": value * 2} for value in values]

    def answer(self, *answers: Any) -> None:
        self.begun[-1][1](list(answers))


def submitted(bench: Bench, value: float, deadline: int) -> RecordedRequest:
    request = RecordedRequest(plan_of(), {"x": rows_of(value)}, now_ns(), deadline)
    bench.submit(request)
    return request


def test_a_run_needs_no_thread_and_the_next_begins_when_it_has_ended() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model, max_rows=1)
        first, second = bench.send(1), bench.send(2)
        await until(lambda: model.begun)
        assert [values for values, _ in model.begun] == [[1]]
        model.answer({"y": 2})
        assert first.answers == [{"y": 2}]
        assert [values for values, _ in model.begun] == [[1], [2]]
        assert first.arrived <= first.compute_start <= first.infer_start <= first.infer_end <= first.compute_end
        model.answer({"y": 4})
        assert second.answers == [{"y": 4}]
        assert bench.in_flight == 0
        assert not model.on_thread
        bench.runner.release()
        bench.runner.close()
        assert model.closed.is_set()

    run(scenario)


def test_runs_on_the_thread_and_without_it_take_turns() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model, max_rows=1)
        for number in range(4):
            if number % 2:
                asked = bench.send(Begins.refused)
                assert await bench.answers(asked) == [{"y": 2 * Begins.refused}]
            else:
                asked = bench.send(number)
                await until(lambda: model.begun)
                model.answer({"y": "begun"})
                model.begun.clear()
                assert asked.answers == [{"y": "begun"}]
        assert model.on_thread == [[Begins.refused], [Begins.refused]]
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()

    run(scenario)


def test_each_request_has_its_own_answer_or_error_and_some_come_later() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model)
        fine, wrong, later = bench.send(1), bench.send(2), bench.send(3)
        await until(lambda: model.begun)
        error = InvalidArgument("not this one")
        model.answer({"y": 2}, error, None)
        assert (fine.answers, wrong.answers, later.answers) == ([{"y": 2}], [error], [])
        bench.runner.outlet_of(later).send({"y": 6}, True)
        assert await bench.answers(later) == [{"y": 6}]
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()

    run(scenario)


def test_a_request_that_is_cancelled_before_the_run_costs_nothing() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model)
        gone, stays = bench.send(1), bench.send(2)
        gone.cancelled = True
        await until(lambda: model.begun or stays.answers)
        if model.begun:
            assert model.begun[0][0] == [2]
            model.answer({"y": 4})
        await bench.answers(gone, stays)
        assert len(stays.answers) == 1
        assert gone.answers == ["dropped"] or isinstance(gone.answers[0], Cancelled)
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()

    run(scenario)


def test_a_caller_that_goes_during_the_run_gets_no_answer() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model)
        gone, stays = bench.send(1), bench.send(2)
        await until(lambda: model.begun)
        gone.cancelled = True
        model.answer({"y": 2}, {"y": 4})
        assert (gone.answers, stays.answers) == (["dropped"], [{"y": 4}])
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()

    run(scenario)


def test_several_instances_run_at_the_same_time() -> None:
    async def scenario() -> None:
        models = [Begins() for _ in range(3)]
        bench = Bench(*models, max_rows=1)
        requests = [bench.send(value) for value in range(5)]
        await until(lambda: all(model.begun for model in models))
        while not all(request.answers for request in requests):
            for model in models:
                if model.begun:
                    values, done = model.begun.pop()
                    done([{"y": values[0]}])
        assert [request.answers for request in requests] == [[{"y": value}] for value in range(5)]
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()
        assert all(model.closed.is_set() for model in models)

    run(scenario)


def test_a_stuck_run_is_given_up_and_its_late_answer_is_nobodys() -> None:
    async def scenario() -> None:
        hung, fresh = Begins(), Begins()
        bench = Bench(hung, max_rows=1, execution_timeout_ns=SECOND)
        bench.replacements = [fresh]
        stuck, waiting = bench.send(1), bench.send(2)
        await until(lambda: hung.begun)
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        await until(lambda: fresh.begun)
        fresh.answer({"y": 4})
        assert isinstance(stuck.answers[0], ModelFailed)
        assert waiting.answers == [{"y": 4}]
        assert not hung.closed.is_set()
        hung.answer({"y": 2})
        await until(hung.closed.is_set)
        assert len(stuck.answers) == 1
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()

    run(scenario)


def test_unloading_does_not_wait_for_an_answer() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model, max_rows=1)
        stuck, waiting = bench.send(1), bench.send(2)
        await until(lambda: model.begun)
        bench.runner.fail_all()
        bench.runner.release()
        bench.runner.close()
        await asyncio.get_running_loop().run_in_executor(None, model.closed.wait)
        assert all(isinstance(answer, Unavailable) for answer in await bench.answers(stuck, waiting))
        model.answer({"y": 2})
        assert (len(stuck.answers), len(waiting.answers), bench.in_flight) == (1, 1, 0)

    run(scenario)


def test_a_request_that_nothing_is_before_does_not_queue() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model, max_rows=1, run_ns=10 * SECOND)
        first = bench.send(1)
        assert [values for values, _ in model.begun] == [[1]]  # within the call
        assert bench.runner.estimated_wait(now_ns()) > 0
        second = bench.send(2)
        assert bench.runner.pending == 1
        model.answer({"y": 2})
        model.answer({"y": 4})
        assert (first.answers, second.answers) == ([{"y": 2}], [{"y": 4}])
        assert bench.runner.estimated_wait(now_ns()) == 0
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()

    run(scenario)


def test_requests_of_one_turn_still_share_a_batch() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model)
        alone = bench.send(1)
        assert bench.runner.pending == 1
        await until(lambda: model.begun)
        assert bench.runner.pending == 0
        model.answer({"y": 1})
        requests = [bench.send(value) for value in (2, 3, 4)]
        assert bench.runner.pending == 3
        await until(lambda: len(model.begun) == 2)
        assert [values for values, _ in model.begun] == [[1], [2, 3, 4]]
        model.answer({"y": 2}, {"y": 3}, {"y": 4})
        assert [request.answers for request in (alone, *requests)] == [[{"y": value}] for value in (1, 2, 3, 4)]
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()

    run(scenario)


def test_a_deadline_that_cannot_be_met_is_rejected_on_arrival() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model, run_ns=SECOND)
        with pytest.raises(DeadlineExceeded):
            bench.send(1, now_ns() + SECOND // 2)
        fine = bench.send(2)
        with pytest.raises(DeadlineExceeded):
            bench.send(3, now_ns() + SECOND // 2)
        await until(lambda: model.begun)
        model.answer({"y": 4})
        assert fine.answers == [{"y": 4}]
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()

    run(scenario)


def test_what_waits_for_the_end_of_its_turn_may_be_cancelled_or_unloaded() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model)
        gone = bench.send(1)
        gone.cancelled = True
        await bench.answers(gone)
        assert not model.begun
        left = bench.send(2)
        bench.runner.fail_all()
        (error,) = await bench.answers(left)
        assert isinstance(error, Unavailable)
        await asyncio.sleep(0)
        assert not model.begun
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()

    run(scenario)


def test_requests_without_deadlines_run_in_the_order_in_which_they_came() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model, max_rows=1)
        requests = [submitted(bench, value, NEVER) for value in range(5)]
        requests[2].cancelled = True
        assert bench.runner.pending == 4
        assert not bench.runner.queue.pending
        while bench.in_flight:
            model.answer({"y": 0})
        assert [values for values, _ in model.begun] == [[0], [1], [3], [4]]
        assert [request.answers for request in requests] == [[{"y": 0}]] * 2 + [["dropped"]] + [[{"y": 0}]] * 2
        bench.runner.release()
        bench.runner.close()

    run(scenario)


def test_a_deadline_overtakes_requests_without_one() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model, max_rows=1)
        for value in range(3):
            submitted(bench, value, NEVER)
        urgent = bench.send(9)
        assert bench.runner.pending == bench.runner.queue.pending == 3
        submitted(bench, 4, NEVER)
        while bench.in_flight:
            model.answer({"y": 0})
        assert [values for values, _ in model.begun] == [[0], [9], [1], [2], [4]]
        assert urgent.answers == [{"y": 0}]
        bench.runner.release()
        bench.runner.close()

    run(scenario)


def test_those_that_wait_for_an_instance_that_cannot_be_replaced_fail_with_it() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model, max_rows=1, execution_timeout_ns=SECOND)
        bench.replacements = [ModelFailed("the file is gone")]
        requests = [submitted(bench, value, NEVER) for value in range(3)]
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        answers = await bench.answers(*requests)
        assert "execution_timeout_ms" in str(answers[0])
        assert [str(answer) for answer in answers[1:]] == ["the file is gone"] * 2
        assert bench.in_flight == 0
        model.answer({"y": 0})
        await until(model.closed.is_set)

    run(scenario)


def test_unloading_fails_those_that_wait() -> None:
    async def scenario() -> None:
        model = Begins()
        bench = Bench(model, max_rows=1)
        requests = [submitted(bench, value, NEVER) for value in range(3)]
        bench.runner.fail_all()
        assert all(isinstance(answer, Unavailable) for answer in await bench.answers(*requests))
        assert bench.in_flight == bench.runner.pending == 0
        bench.runner.release()
        bench.runner.close()
        await until(model.closed.is_set)

    run(scenario)
