"""Decoupled steps inside ensembles: each of their responses goes on through the later steps, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf import text_format
from queued_requests import RecordedRequest, plan_of
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ModelFailed
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters
from isochrone.worker.ensembles.runner import EnsembleRunner
from isochrone.worker.statistics import ModelStatistics

#: x → many a; each a → b and c at once; outputs b and c.
FORK = """
    input { name: "x" data_type: TYPE_INT32 dims: [1] }
    output { name: "b" data_type: TYPE_INT32 dims: [1] }
    output { name: "c" data_type: TYPE_INT32 dims: [1] }
    ensemble_scheduling {
      step { model_name: "many" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "a" } }
      step { model_name: "one" model_version: -1 input_map { key: "x" value: "a" } output_map { key: "y" value: "b" } }
      step { model_name: "two" model_version: -1 input_map { key: "x" value: "a" } output_map { key: "y" value: "c" } }
    }
"""
#: x → many a; each a → many b.
TWICE = """
    input { name: "x" data_type: TYPE_INT32 dims: [1] }
    output { name: "b" data_type: TYPE_INT32 dims: [1] }
    ensemble_scheduling {
      step { model_name: "many" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "a" } }
      step { model_name: "many" model_version: -1 input_map { key: "x" value: "a" } output_map { key: "y" value: "b" } }
    }
"""


class Caller(RecordedRequest):
    """Takes many responses, as fast as the test lets it."""

    takes_many = True
    congested = False

    def __init__(self, value: int) -> None:
        super().__init__(plan_of(), {"x": number(value)})
        self.parameters: list[Parameters] = []
        self.callbacks: list[Callable[[], None]] = []

    def emit(self, outputs: dict[str, Any], parameters: Parameters = NO_PARAMETERS) -> None:
        self.parameters.append(parameters)
        self.answers.append({name: int(array.item()) for name, array in outputs.items()})

    @property
    def is_congested(self) -> bool:
        return self.congested

    def when_writable(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


class Step:
    """A served model whose requests wait until the test answers them."""

    batched = False
    model_version = "1"

    def __init__(self, name: str, decoupled: bool) -> None:
        self.model_name, self.decoupled = name, decoupled
        self.held = 0
        self.waiting: list[InferRequest] = []

    def hold(self) -> None:
        self.held += 1

    def request_ended(self) -> None:
        self.held -= 1

    def submit(self, request: InferRequest) -> None:
        self.waiting.append(request)

    def take(self, index: int = 0) -> InferRequest:
        return self.waiting.pop(index)


def number(value: int) -> Any:
    return np.array([value], np.int32)


class Bench:
    def __init__(self, text: str) -> None:
        self.steps = {name: Step(name, name == "many") for name in ("many", "one", "two")}
        self.in_flight = 1
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        resolve: Any = lambda name, _: self.steps[name]  # noqa: E731
        self.runner = EnsembleRunner("e", config, resolve, ModelStatistics("e", "1"), self.request_ended)

    def request_ended(self) -> None:
        self.in_flight -= 1

    def send(self, value: int = 0) -> Caller:
        caller = Caller(value)
        self.runner.submit(caller)
        return caller

    def answer(self, name: str, value: int, index: int = 0) -> None:
        self.steps[name].take(index).complete({"y": number(value)})

    def is_clean(self) -> bool:
        return not self.in_flight and not any(step.held for step in self.steps.values()) and not self.runner._running


def test_no_response() -> None:
    bench = Bench(FORK)
    caller = bench.send()
    bench.steps["many"].take().finish()
    assert caller.answers == ["finished"]
    assert bench.is_clean()


def test_every_response_goes_through_the_later_steps_and_leaves_in_order() -> None:
    bench = Bench(FORK)
    caller = bench.send()
    many = bench.steps["many"].take()
    for value in range(3):
        many.emit({"y": number(value)})
    assert [request.inputs["x"].item() for request in bench.steps["one"].waiting] == [0, 1, 2]
    # The last first, and its two halves apart: none overtakes.
    bench.answer("one", 12, 2)
    bench.answer("two", 22, 2)
    bench.answer("two", 21, 1)
    assert caller.answers == []
    many.finish()
    bench.answer("one", 10)
    bench.answer("two", 20)
    assert caller.answers == [{"b": 10, "c": 20}]
    bench.answer("one", 11)
    assert caller.answers == [{"b": 10, "c": 20}, {"b": 11, "c": 21}, {"b": 12, "c": 22}, "finished"]
    assert bench.is_clean()


def test_the_end_waits_for_the_last_step() -> None:
    bench = Bench(FORK)
    caller = bench.send()
    many = bench.steps["many"].take()
    many.emit({"y": number(0)})
    bench.answer("one", 1)
    bench.answer("two", 2)
    assert caller.answers == [{"b": 1, "c": 2}]
    many.finish()
    assert caller.answers == [{"b": 1, "c": 2}, "finished"]
    assert bench.is_clean()


def test_decoupled_steps_one_behind_the_other() -> None:
    bench = Bench(TWICE)
    caller = bench.send()
    first = bench.steps["many"].take()
    first.emit({"y": number(1)})
    first.emit({"y": number(2)})
    first.finish()
    one, two = bench.steps["many"].take(), bench.steps["many"].take()
    one.finish()
    two.emit({"y": number(20)})
    two.emit({"y": number(21)})
    assert caller.answers == [{"b": 20}, {"b": 21}]
    two.finish()
    assert caller.answers == [{"b": 20}, {"b": 21}, "finished"]
    assert bench.is_clean()


def test_a_decoupled_step_that_answers_at_once() -> None:
    """An ensemble that is decoupled by its steps may still answer once."""
    bench = Bench(TWICE)
    caller = bench.send()
    bench.answer("many", 5)
    bench.answer("many", 6)
    assert caller.answers == [{"b": 6}, "finished"]
    assert bench.is_clean()


def test_a_failure_ends_the_stream_and_drops_the_rest() -> None:
    bench = Bench(FORK)
    caller = bench.send()
    many = bench.steps["many"].take()
    many.emit({"y": number(0)})
    many.emit({"y": number(1)})
    bench.answer("one", 1)
    bench.answer("two", 2)
    bench.steps["one"].take().fail(ModelFailed("broke"))
    assert caller.answers[0] == {"b": 1, "c": 2}
    assert str(caller.answers[1]) == "in ensemble 'e', broke"
    assert many.cancelled
    assert bench.steps["two"].waiting[0].cancelled
    many.dropped()
    bench.steps["two"].take().dropped()
    assert len(caller.answers) == 2
    assert bench.is_clean()


def test_a_fast_model_waits_for_slow_steps_and_slow_callers() -> None:
    bench = Bench(FORK)
    caller = bench.send()
    many = bench.steps["many"].take()
    emitted = 0
    while not many.is_congested:
        many.emit({"y": number(emitted)})
        emitted += 1
    freed: list[str] = []
    many.when_writable(lambda: freed.append("steps"))
    assert freed == []
    bench.answer("one", 1)
    bench.answer("two", 2)
    assert freed == ["steps"]
    assert not many.is_congested
    caller.congested = True
    assert many.is_congested
    many.when_writable(lambda: freed.append("caller"))
    (callback,) = caller.callbacks
    callback()
    assert freed == ["steps", "caller"]


def test_a_model_that_waits_is_freed_when_the_request_ends() -> None:
    bench = Bench(FORK)
    bench.send()
    many = bench.steps["many"].take()
    while not many.is_congested:
        many.emit({"y": number(0)})
    freed: list[bool] = []
    many.when_writable(lambda: freed.append(True))
    bench.runner.fail_all()
    assert freed == [True]
    many.dropped()
    assert bench.is_clean()


def test_responses_tell_their_sequence() -> None:
    bench = Bench(FORK)
    caller = bench.send()
    many = bench.steps["many"].take()
    many.emit({"y": number(0)})
    bench.answer("one", 1)
    bench.answer("two", 2)
    assert caller.parameters == [{"sequence_id": 0, "sequence_start": False, "sequence_end": False}]
