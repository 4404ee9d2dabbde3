"""The shell around the queue, on a real loop with real threads; what a model does is in the test's hands."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from queued_requests import RecordedRequest, plan_of, rows_of
from runner_bench import Bench, Gated, entered, run, until

from isochrone.clock import SECOND, now_ns
from isochrone.errors import DeadlineExceeded, ModelFailed, Unavailable


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
        # When the run ends, its executable is freed, and no request is answered twice.
        assert not hung.closed.is_set()
        hung.gate.set()
        await until(lambda: hung.closed.is_set())
        assert len(stuck.answers) == 1
        bench.runner.release()
        bench.runner.close()
        assert fresh.closed.is_set()

    run(scenario)


def test_the_instances_that_hung_are_made_again_and_not_the_first_one() -> None:
    async def scenario() -> None:
        models = [Gated(), Gated()]
        bench = Bench(*models, max_rows=1, execution_timeout_ns=SECOND)
        bench.replacements = [Gated(), Gated()]
        stuck = [bench.send(-1), bench.send(-1)]
        await until(lambda: all(model.runs for model in models))
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        await bench.answers(*stuck)
        assert sorted(bench.replaced) == [0, 1]
        assert sorted(instance.number for instance in bench.runner.instances) == [0, 1]
        for model in models:
            model.gate.set()
        await until(lambda: all(model.closed.is_set() for model in models))
        bench.runner.release()
        bench.runner.close()

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
        await until(lambda: bench.runner._order.held)
        assert not second.answers
        slow.gate.set()
        answers = await bench.answers(first, second)
        assert [answer["y"].item() for answer in answers] == [-2, 4]
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)


class Fussy(Gated):
    """Takes one row at a time."""

    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        if len(inputs["x"]) > 1:
            raise ValueError("one at a time")
        return super().execute(inputs, outputs)


def test_a_batch_run_twice_does_not_teach_the_curve() -> None:
    async def scenario() -> None:
        bench = Bench(Fussy())
        before = bench.curve.mean(2)
        for _ in range(16):
            await bench.answers(bench.send(1), bench.send(2))
        assert bench.curve.mean(2) == before
        bench.runner.close()

    run(scenario)


class Quick(Gated):
    inline_allowed = True


def request_of(value: float, deadline: int) -> RecordedRequest:
    return RecordedRequest(plan_of(), {"x": rows_of(value)}, now_ns(), deadline)


def test_who_is_refused_on_the_shortest_way_is_told_by_how_much() -> None:
    async def scenario() -> None:
        executable = Quick()
        bench = Bench(executable, max_rows=1, run_ns=50_000)
        answer = bench.send(1)
        assert answer.answers, "not the shortest way"
        (refused,) = bench.send(2, now_ns() - SECOND).answers
        assert isinstance(refused, DeadlineExceeded)
        assert re.search(r"^Request timeout expired: model 'm' would miss .* 1000\.\d+ ms$", str(refused))
        assert executable.runs == [1]
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)


def test_a_tight_deadline_is_treated_alike_alone_and_in_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 20 µs: a request with 0.8 ms is served, whether it finds an idle model or shares its turn."""

    async def scenario() -> None:
        now = now_ns()
        monkeypatch.setattr("isochrone.worker.execution.batches.inline_runner.now_ns", lambda: now)

        def is_taken(alone: bool, microseconds: int) -> bool:
            executable = Quick()
            bench = Bench(executable, max_rows=1 if alone else 8, run_ns=20_000)
            requests = [request_of(1, now + microseconds * 1000) for _ in range(1 if alone else 2)]
            bench.stage.begin()
            for request in requests:
                bench.in_flight += 1
                try:
                    bench.runner.submit(request)
                except DeadlineExceeded as error:
                    # The second one, which would run behind the first.
                    request.answers.append(error)
            bench.stage.end()
            bench.runner.release()
            bench.runner.close()
            taken = [not isinstance(request.answers[0], DeadlineExceeded) for request in requests]
            assert sum(executable.runs) == sum(taken)
            return taken[0]

        for microseconds in (5, 20, 50, 100, 150, 200, 300, 800, 2000):
            alone, in_company = is_taken(True, microseconds), is_taken(False, microseconds)
            assert alone == in_company, microseconds
            if microseconds >= 800:
                assert alone

    run(scenario)
