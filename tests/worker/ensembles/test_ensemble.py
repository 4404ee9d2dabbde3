"""Requests through a graph of steps, each step in the hands of the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf import text_format
from queued_requests import RecordedRequest, plan_of, rows_of
from tritonclient.grpc import model_config_pb2

from isochrone.errors import InvalidArgument, ModelFailed, NotFound, Unavailable, Unsupported
from isochrone.protocol.messages import InferRequest
from isochrone.worker.ensembles.runner import EnsembleRunner
from isochrone.worker.statistics import ModelStatistics

#: x → a, x → b at once; then (a, b) → c; outputs c and b.
DIAMOND = """
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "c" data_type: TYPE_FP32 dims: [1] }
    output { name: "b" data_type: TYPE_FP32 dims: [1] }
    ensemble_scheduling {
      step { model_name: "join" model_version: -1 input_map { key: "l" value: "a" } input_map { key: "r" value: "b" }
             output_map { key: "y" value: "c" } }
      step { model_name: "left" model_version: -1 input_map { key: "x" value: "x" }
             output_map { key: "y" value: "a" } }
      step { model_name: "right" model_version: 3 input_map { key: "x" value: "x" }
             output_map { key: "y" value: "b" } }
    }
"""


class Step:
    """A served model whose requests wait until the test answers them."""

    batched = False
    decoupled = False

    def __init__(self, name: str) -> None:
        self.model_name = name
        self.model_version = "1"
        self.held = 0
        self.waiting: list[InferRequest] = []
        self.refuse: Exception | None = None

    def hold(self) -> None:
        self.held += 1

    def request_ended(self) -> None:
        self.held -= 1

    def submit(self, request: InferRequest) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.waiting.append(request)

    def answer(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        request = self.waiting.pop(0)
        if request.cancelled:
            request.dropped()
        else:
            request.complete(function(request.inputs))


class Bench:
    """An ensemble over steps in the test's hands."""

    def __init__(self) -> None:
        self.steps = {name: Step(name) for name in ("left", "right", "join")}
        self.asked: list[tuple[str, str]] = []
        self.in_flight = 0
        config = text_format.Parse(DIAMOND, model_config_pb2.ModelConfig())
        statistics = ModelStatistics("e", "1")
        self.runner = EnsembleRunner("e", config, self.resolve, statistics, self.request_ended)  # type: ignore[arg-type]

    def resolve(self, name: str, version: str) -> Step:
        self.asked.append((name, version))
        if name not in self.steps:
            raise NotFound(name)
        return self.steps[name]

    def request_ended(self) -> None:
        self.in_flight -= 1

    def send(self, value: float, **plan: Any) -> RecordedRequest:
        request = RecordedRequest(plan_of(**plan), {"x": rows_of(value)}, deadline=77)
        self.in_flight += 1
        self.runner.submit(request)
        return request

    def is_clean(self) -> bool:
        return not self.in_flight and not any(step.held for step in self.steps.values()) and not self.runner._running


def test_steps_run_as_soon_as_their_inputs_are_there() -> None:
    bench = Bench()
    request = bench.send(3)
    left, right, join = (bench.steps[name] for name in ("left", "right", "join"))
    assert [len(step.waiting) for step in (left, right, join)] == [1, 1, 0]
    assert bench.asked == [("join", ""), ("left", ""), ("right", "3")]
    right.answer(lambda inputs: {"y": inputs["x"] * 10})
    assert not join.waiting
    left.answer(lambda inputs: {"y": inputs["x"] + 1})
    join.answer(lambda inputs: {"y": inputs["l"] + inputs["r"]})
    (outputs,) = request.answers
    assert {name: array.item() for name, array in outputs.items()} == {"c": 34, "b": 30}
    assert bench.is_clean()


def test_tensors_are_handed_on_as_they_are() -> None:
    bench = Bench()
    request = bench.send(3)
    assert bench.steps["left"].waiting[0].inputs["x"] is request.inputs["x"]
    made = rows_of(8)
    bench.steps["left"].answer(lambda _: {"y": made})
    bench.steps["right"].answer(lambda _: {"y": made})
    assert bench.steps["join"].waiting[0].inputs["l"] is made


def test_deadline_priority_id_and_parameters_go_with_every_step() -> None:
    bench = Bench()
    request = RecordedRequest(plan_of(priority=2), {"x": rows_of(3)}, deadline=77, request_id="seven")
    request.plan.parameters = {"colour": "blue"}
    bench.runner.submit(request)
    child = bench.steps["left"].waiting[0]
    assert (child.deadline, child.id, child.plan.priority, child.plan.outputs) == (77, "seven", 2, ("y",))
    assert child.plan.parameters == {"colour": "blue"}


def test_steps_that_no_requested_output_needs_do_not_run() -> None:
    bench = Bench()
    request = bench.send(3, outputs=("b",))
    assert [len(bench.steps[name].waiting) for name in ("left", "right", "join")] == [0, 1, 0]
    bench.steps["right"].answer(lambda inputs: {"y": inputs["x"] * 10})
    assert {name: array.item() for name, array in request.answers[0].items()} == {"b": 30}
    assert bench.is_clean()


def test_versions_are_held_until_the_request_is_over() -> None:
    bench = Bench()
    bench.send(1)
    assert [step.held for step in bench.steps.values()] == [1, 1, 1]
    bench.steps["left"].answer(lambda inputs: {"y": inputs["x"]})
    assert bench.steps["join"].held == 1


def test_one_failing_step_fails_the_request_once_and_drops_its_siblings() -> None:
    bench = Bench()
    request = bench.send(1)
    bench.steps["left"].waiting.pop().fail(ModelFailed("left broke"))
    assert [str(answer) for answer in request.answers] == ["in ensemble 'e', left broke"]
    assert isinstance(request.answers[0], ModelFailed)
    assert bench.is_clean()
    assert bench.steps["right"].waiting[0].cancelled
    bench.steps["right"].answer(lambda inputs: {"y": inputs["x"]})
    assert len(request.answers) == 1
    assert not bench.steps["join"].waiting
    assert bench.is_clean()


def test_a_caller_who_leaves_ends_the_run() -> None:
    bench = Bench()
    request = bench.send(1)
    request.cancelled = True
    for name in ("left", "right"):
        assert bench.steps[name].waiting[0].cancelled
        bench.steps[name].answer(lambda inputs: {"y": inputs["x"]})
    assert request.answers == ["dropped"]
    assert bench.is_clean()


def test_a_caller_who_leaves_before_the_next_step_ends_the_run_there() -> None:
    bench = Bench()
    request = bench.send(1)
    children = [bench.steps[name].waiting.pop() for name in ("left", "right")]
    children[0].complete({"y": rows_of(1)})
    request.cancelled = True
    children[1].complete({"y": rows_of(1)})
    assert not bench.steps["join"].waiting
    assert request.answers == ["dropped"]
    assert bench.is_clean()


def test_a_step_that_refuses_says_where() -> None:
    bench = Bench()
    bench.steps["right"].refuse = InvalidArgument("input 'x': expected FP16")
    request = bench.send(1)
    assert "in ensemble 'e', input 'x': expected FP16" in str(request.answers[0])
    bench.steps["left"].answer(lambda inputs: {"y": inputs["x"]})
    assert len(request.answers) == 1
    assert bench.is_clean()


def test_an_output_that_a_step_did_not_give_is_left_out_of_what_follows() -> None:
    bench = Bench()
    request = bench.send(1)
    bench.steps["left"].answer(lambda _: {"other": np.zeros(1)})
    bench.steps["right"].answer(lambda inputs: {"y": inputs["x"]})
    join = bench.steps["join"].waiting[0]
    assert list(join.inputs) == [name for name, _, _ in join.plan.inputs] == ["r"]
    bench.steps["join"].answer(lambda _: {})
    assert list(request.answers[0]) == ["b"]
    assert bench.is_clean()


def test_a_decoupled_step_gives_exactly_one_response() -> None:
    bench = Bench()
    request = bench.send(1)
    left = bench.steps["left"].waiting.pop()
    left.emit({"y": rows_of(5)})
    left.finish()
    bench.steps["right"].answer(lambda inputs: {"y": inputs["x"]})
    bench.steps["join"].answer(lambda inputs: {"y": inputs["l"]})
    assert request.answers[0]["c"].item() == 5
    assert bench.is_clean()


def test_a_decoupled_step_without_a_response_is_an_error_not_a_hang() -> None:
    bench = Bench()
    request = bench.send(1)
    bench.steps["left"].waiting.pop().finish()
    assert "expected one response, given none" in str(request.answers[0])
    assert bench.is_clean()


def test_a_decoupled_step_with_two_responses_is_an_error() -> None:
    bench = Bench()
    request = bench.send(1)
    left = bench.steps["left"].waiting.pop()
    left.emit({"y": rows_of(5)})
    left.emit({"y": rows_of(6)})
    assert left.cancelled
    left.dropped()
    assert isinstance(request.answers[0], Unsupported)
    assert len(request.answers) == 1
    assert bench.is_clean()


def test_unloading_fails_what_runs() -> None:
    bench = Bench()
    requests = [bench.send(1), bench.send(2)]
    bench.runner.fail_all()
    assert all(isinstance(request.answers[0], Unavailable) for request in requests)
    assert bench.is_clean()


def test_a_step_that_is_not_served_holds_nothing() -> None:
    bench = Bench()
    del bench.steps["right"]
    bench.in_flight += 1
    request = RecordedRequest(plan_of(), {"x": rows_of(1)})
    try:
        bench.runner.submit(request)
    except NotFound:
        bench.request_ended()
    assert bench.is_clean()


def test_requests_with_one_plan_share_the_plans_of_the_steps() -> None:
    bench = Bench()
    plan = plan_of()
    other_shape = RecordedRequest(plan, {"x": rows_of(1, 2)})
    for request in (
        RecordedRequest(plan, {"x": rows_of(1)}),
        RecordedRequest(plan, {"x": rows_of(2)}),
        other_shape,
        RecordedRequest(plan_of(priority=2), {"x": rows_of(3)}),
    ):
        bench.runner.submit(request)
    first, second, third, fourth = (child.plan for child in bench.steps["left"].waiting)
    assert first is second
    assert third is not first
    assert third.inputs[0][2] == (2, 1)
    assert (fourth.priority, first.priority) == (2, 0)
