"""The stage of a turn in which models run: order, its time, and what may happen to a request that waits in it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from queued_requests import RecordedRequest, plan_of, rows_of
from runner_bench import Bench, Gated, run, until

from isochrone.clock import MICROSECOND, SECOND, now_ns
from isochrone.errors import DeadlineExceeded, ModelFailed, Unavailable
from isochrone.protocol.messages import InferRequest
from isochrone.worker.execution.inline.compute_stage import STAGE_NS, ComputeStage
from isochrone.worker.execution.inline.watchdog import InlineHang
from isochrone.worker.scheduling.batch_queue import LevelPolicy, QueueRules

#: A stage that a busy machine does not cut short.
LONG_NS = 100 * SECOND
_TWO_LEVELS = (LevelPolicy(), LevelPolicy())


class Quick(Gated):
    inline_allowed = True


class Recorder:
    """A runner that writes down what it is asked to do."""

    def __init__(self, stage: ComputeStage, takes_ns: int = 0, steps: int = 1) -> None:
        self.stage = stage
        self.takes_ns = takes_ns
        self.steps = steps
        self.events: list[tuple[str, Any]] = []

    def compute(self, requests: list[Any], until: int) -> tuple[int, list[Any]]:
        for count, request in enumerate(requests, 1):
            self.events.append(("compute", request.name))
            ends = now_ns() + self.takes_ns
            while now_ns() < ends:
                pass
            if now_ns() > until:
                return count, [{}] * count
        return len(requests), [{}] * len(requests)

    def finish(self, requests: list[Any], results: list[Any]) -> None:
        assert len(requests) == len(results)
        for request in requests:
            self.events.append(("finish", request.name))
            request.step += 1
            if request.step < self.steps:
                self.stage.add(self, request, 0)

    def give_up(self, requests: list[Any], error: Exception) -> None:
        self.events += [("give up", request.name) for request in requests]


class Named(InferRequest):
    def __init__(self, name: int) -> None:
        super().__init__(plan_of(1), "", {}, 0)
        self.name = name
        self.step = 0


def staged(bench: Bench, *requests: RecordedRequest) -> None:
    """Submit requests in one turn, which is not over yet."""
    bench.stage.begin()
    for request in requests:
        bench.in_flight += 1
        bench.runner.submit(request)
        assert not request.answers


def request_of(value: float, deadline: int | None = None) -> RecordedRequest:
    now = now_ns()
    return RecordedRequest(plan_of(), {"x": rows_of(value)}, now, deadline or now + 100 * SECOND)


def test_all_requests_of_a_turn_run_before_the_first_is_answered() -> None:
    stage = ComputeStage(LONG_NS)
    recorder = Recorder(stage)
    stage.begin()
    for name in range(3):
        stage.add(recorder, Named(name), 7)  # type: ignore[arg-type]
    assert recorder.events == []
    assert stage.expected_ns == 21
    stage.end()
    assert recorder.events == [("compute", n) for n in range(3)] + [("finish", n) for n in range(3)]
    assert stage.expected_ns == 0


def test_what_an_answer_leads_to_runs_in_the_same_turn() -> None:
    stage = ComputeStage(LONG_NS)
    recorder = Recorder(stage, steps=3)
    stage.begin()
    for name in range(2):
        stage.add(recorder, Named(name), 0)  # type: ignore[arg-type]
    stage.end()
    one_step = [("compute", 0), ("compute", 1), ("finish", 0), ("finish", 1)]
    assert recorder.events == 3 * one_step


def test_after_its_time_the_stage_answers_and_leaves_the_rest_to_the_next_turn() -> None:
    async def scenario() -> None:
        stage = ComputeStage()
        recorder = Recorder(stage, takes_ns=2 * STAGE_NS)
        stage.begin()
        for name in range(3):
            stage.add(recorder, Named(name), 0)  # type: ignore[arg-type]
        stage.end()
        assert recorder.events == [("compute", 0), ("finish", 0)]
        await asyncio.sleep(0)
        assert recorder.events[2:] == [("compute", 1), ("finish", 1)]
        await asyncio.sleep(0)
        assert recorder.events[4:] == [("compute", 2), ("finish", 2)]

    run(scenario)


def test_a_busy_model_does_not_keep_others_from_running() -> None:
    async def scenario() -> None:
        stage = ComputeStage()
        busy, other = Recorder(stage, takes_ns=STAGE_NS // 4, steps=1000), Recorder(stage)
        stage.begin()
        for name in range(20):
            stage.add(busy, Named(name), STAGE_NS // 4)  # type: ignore[arg-type]
        stage.add(other, Named(0), 0)  # type: ignore[arg-type]
        stage.end()
        assert other.events == []
        assert stage.waiting(busy) == 20, "those that were answered came back, behind the others"
        ran = sum(kind == "compute" for kind, _ in busy.events)
        assert 0 < ran < 20
        assert stage.expected_ns == (20 - ran) * STAGE_NS // 4, "those that did not run; the others expect nothing"
        await asyncio.sleep(0)
        assert other.events == [("compute", 0), ("finish", 0)]
        busy.steps = 0

    run(scenario)


class Raises(Recorder):
    def compute(self, requests: list[Any], until: int) -> tuple[int, list[Any]]:
        raise ValueError("a mistake")


class RaisesLater(Recorder):
    def finish(self, requests: list[Any], results: list[Any]) -> None:
        raise ValueError("a mistake")


def test_a_runner_that_raises_does_not_touch_the_others() -> None:
    async def scenario() -> None:
        stage = ComputeStage(LONG_NS)
        runners = [Raises(stage), RaisesLater(stage), Recorder(stage)]
        for _ in range(2):
            stage.begin()
            for runner in runners:
                runner.events.clear()
                stage.add(runner, Named(1), 0)  # type: ignore[arg-type]
            stage.end()
            assert runners[0].events == [("give up", 1)]
            assert runners[2].events == [("compute", 1), ("finish", 1)]

    run(scenario)


def test_outside_a_turn_the_stage_is_the_next_turn_of_the_loop() -> None:
    async def scenario() -> None:
        stage = ComputeStage(LONG_NS)
        recorder = Recorder(stage)
        for name in range(2):
            stage.add(recorder, Named(name), 0)  # type: ignore[arg-type]
        assert recorder.events == []
        await asyncio.sleep(0)
        assert [kind for kind, _ in recorder.events] == ["compute", "compute", "finish", "finish"]

    run(scenario)


def test_a_caller_that_goes_while_its_request_waits_costs_no_run() -> None:
    async def scenario() -> None:
        executable = Quick()
        bench = Bench(executable, max_rows=1, run_ns=20 * MICROSECOND)
        gone, stays = request_of(1), request_of(2)
        staged(bench, gone, stays)
        gone.cancelled = True
        bench.stage.end()
        assert executable.runs == [1]
        assert stays.answers[0]["y"].item() == 4
        assert gone.answers == ["dropped"]
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)


def test_an_instance_that_became_busy_has_the_request_queued() -> None:
    async def scenario() -> None:
        executable = Quick()
        bench = Bench(executable, max_rows=1, run_ns=20 * MICROSECOND)
        request = request_of(1)
        staged(bench, request)
        taken = bench.runner._idle.pop()
        bench.stage.end()
        assert not request.answers
        assert bench.runner.pending == 1
        bench.runner._idle.append(taken)
        await until(lambda: request.answers)
        assert request.answers[0]["y"].item() == 2
        bench.runner.close()

    run(scenario)


def test_an_unload_while_a_request_waits_is_told_to_its_caller() -> None:
    async def scenario() -> None:
        executable = Quick()
        bench = Bench(executable, max_rows=1, run_ns=20 * MICROSECOND)
        request = request_of(1)
        staged(bench, request)
        bench.runner.release()
        bench.stage.end()
        assert isinstance(request.answers[0], Unavailable)
        assert executable.runs == []
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)


def test_a_deadline_that_passes_behind_others_is_not_run() -> None:
    async def scenario() -> None:
        executable = Quick()
        bench = Bench(executable, max_rows=1, run_ns=20 * MICROSECOND)
        late, other = request_of(1, now_ns() + 50 * SECOND), request_of(2)
        staged(bench, other, late)
        late.deadline = now_ns() - SECOND
        bench.stage.end()
        assert isinstance(late.answers[0], DeadlineExceeded)
        assert other.answers[0]["y"].item() == 4
        assert executable.runs == [1]
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)


class Resubmits(RecordedRequest):
    """Its failure leads to the next request, as in a stream of requests."""

    bench: Bench
    following: RecordedRequest

    def fail(self, error: Any) -> None:
        super().fail(error)
        self.bench.in_flight += 1
        self.bench.runner.submit(self.following)


def test_a_request_that_follows_a_failure_is_not_lost() -> None:
    async def scenario() -> None:
        bench = Bench(FailsOnce(), max_rows=1, run_ns=20 * MICROSECOND)
        now = now_ns()
        failing = Resubmits(plan_of(), {"x": rows_of(-1)}, now, now + 100 * SECOND)
        failing.bench, failing.following = bench, request_of(5)
        others = [request_of(1) for _ in range(3)]
        staged(bench, failing, *others)
        bench.stage.end()
        await until(lambda: failing.following.answers)
        assert failing.following.answers[0]["y"].item() == 10
        assert all(request.answers for request in others)
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)


class Hangs(Quick):
    def execute(self, inputs: Any, outputs: Any) -> Any:
        self.runs.append(threading.current_thread().name)
        if len(self.runs) == 1:
            raise InlineHang("as the watchdog does")
        return {"y": inputs["x"] * 2}


def test_after_a_hang_the_others_of_the_stage_run_on_the_thread() -> None:
    async def scenario() -> None:
        model = Hangs()
        bench = Bench(model, max_rows=1, run_ns=20 * MICROSECOND)
        requests = [request_of(value) for value in (1, 2, 3)]
        staged(bench, *requests)
        bench.stage.end()
        await until(lambda: all(request.answers for request in requests))
        assert isinstance(requests[0].answers[0], ModelFailed)
        assert model.runs == ["MainThread", "m-1", "m-1"]
        bench.runner.close()

    run(scenario)


def test_one_by_one_requests_run_in_their_turn_whatever_the_batches_are_sized_by() -> None:
    async def scenario() -> None:
        for rules in (QueueRules(max_rows=8, preferred=(4, 8)), QueueRules(max_rows=8, levels=2, policies=_TWO_LEVELS)):
            bench = Bench(Quick(), max_rows=8, run_ns=20 * MICROSECOND, rules=rules)
            for value in range(10):
                request = bench.send(value)
                assert request.answers[0]["y"].item() == 2 * value
            bench.runner.close()

    run(scenario)


def test_rejections_in_the_stage_count_as_rejections() -> None:
    async def scenario() -> None:
        bench = Bench(Quick(), max_rows=1, run_ns=20 * MICROSECOND)
        late = request_of(1)
        staged(bench, late)
        late.deadline = now_ns() - SECOND
        bench.stage.end()
        statistics = bench.runner._statistics
        assert sum(statistics._rejections.values()) == 1
        assert not statistics._failures
        bench.runner.close()

    run(scenario)


class FailsOnce(Quick):
    def execute(self, inputs: Any, outputs: Any) -> Any:
        if inputs["x"].min() < 0:
            raise ValueError("negative")
        return super().execute(inputs, outputs)


def test_a_request_whose_model_raises_does_not_touch_the_others() -> None:
    async def scenario() -> None:
        bench = Bench(FailsOnce(), max_rows=1, run_ns=20 * MICROSECOND)
        requests = [request_of(value) for value in (1, -1, 3)]
        staged(bench, *requests)
        bench.stage.end()
        first, failed, last = (request.answers[0] for request in requests)
        assert isinstance(failed, ModelFailed)
        assert "negative" in str(failed)
        assert [first["y"].item(), last["y"].item()] == [2, 6]
        assert bench.in_flight == 0
        bench.runner.close()

    run(scenario)
