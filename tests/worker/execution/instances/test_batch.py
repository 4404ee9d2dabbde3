"""One batch in an executable: gathered, run, split; no request fails or is lost because of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from queued_requests import RecordedRequest, plan_of, rows_of

from isochrone.errors import InvalidArgument, IsochroneError, ModelFailed, Unavailable
from isochrone.worker.backends.interface import DeviceLost, Executable
from isochrone.worker.execution.inline.watchdog import InlineHang
from isochrone.worker.execution.instances.batch import Batch, BatchBuffers, as_model_error


class Scripted(Executable):
    """Runs a function; notes how many rows each run had and what outputs were asked for."""

    def __init__(self, function: Callable[[Any], dict[str, Any]]) -> None:
        self.function = function
        self.runs: list[int] = []
        self.wanted: list[tuple[str, ...] | None] = []

    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        self.runs.append(len(inputs["x"]))
        self.wanted.append(outputs)
        return self.function(inputs["x"])

    def close(self) -> None:
        pass


def run(executable: Scripted, *requests: RecordedRequest, buffers: BatchBuffers | None = None) -> Batch:
    batch = Batch(list(requests), sum(request.plan.batch_size for request in requests))
    batch.run(executable, buffers)
    assert 0 < batch.compute_start <= batch.infer_start <= batch.infer_end <= batch.compute_end
    return batch


def asking(*values: float, outputs: tuple[str, ...] | None = None) -> RecordedRequest:
    return RecordedRequest(plan_of(len(values), outputs=outputs), {"x": rows_of(*values)})


def doubled(x: Any) -> dict[str, Any]:
    return {"y": x * 2, "z": -x}


def values(result: Any, name: str = "y") -> list[float]:
    return [float(value) for value in result[name].reshape(-1)]


def refusing(bad: float, error: BaseException) -> Callable[[Any], dict[str, Any]]:
    def function(x: Any) -> dict[str, Any]:
        if bad in x:
            raise error
        return doubled(x)

    return function


def test_one_request_is_run_as_it_is() -> None:
    seen: list[Any] = []

    def function(x: Any) -> dict[str, Any]:
        seen.append(x)
        return {"y": x}

    request = asking(1, 2)
    batch = run(Scripted(function), request, buffers=BatchBuffers(8))
    assert seen[0] is request.inputs["x"]
    assert batch.results[0] is not None
    assert batch.results[0]["y"] is request.inputs["x"]


@pytest.mark.parametrize("buffers", [None, BatchBuffers(8)])
def test_rows_come_back_to_whom_they_belong(buffers: BatchBuffers | None) -> None:
    executable = Scripted(doubled)
    batch = run(executable, asking(1, 2), asking(3), asking(4, 5, 6), buffers=buffers)
    assert executable.runs == [6]
    assert [values(result) for result in batch.results] == [[2, 4], [6], [8, 10, 12]]


def test_buffers_are_reused_for_the_same_shape_only() -> None:
    buffers = BatchBuffers(8)
    executable = Scripted(doubled)
    run(executable, asking(1), asking(2), buffers=buffers)
    batch = run(executable, asking(3), asking(4), asking(5), buffers=buffers)
    assert [values(result) for result in batch.results] == [[6], [8], [10]]
    wide = [RecordedRequest(plan_of(1), {"x": np.full((1, 3), value, np.float32)}) for value in (7, 8)]
    assert [values(result) for result in run(executable, *wide, buffers=buffers).results] == [[14] * 3, [16] * 3]


def test_bytes_tensors_are_gathered() -> None:
    words = [np.array([[b"a"]], object), np.array([[b"longer"], [b""]], object)]
    requests = [RecordedRequest(plan_of(len(each)), {"x": each}) for each in words]
    batch = run(Scripted(lambda x: {"y": x}), *requests, buffers=BatchBuffers(8))
    assert [result["y"].tolist() for result in batch.results if result] == [[[b"a"]], [[b"longer"], [b""]]]


def test_everybody_gets_the_outputs_they_asked_for() -> None:
    executable = Scripted(doubled)
    batch = run(executable, asking(1, outputs=("y",)), asking(2, outputs=("z",)), asking(3))
    assert executable.wanted == [None]
    assert [sorted(result) for result in batch.results if result] == [["y"], ["z"], ["y", "z"]]


def test_the_model_is_asked_for_what_all_want() -> None:
    executable = Scripted(doubled)
    run(executable, asking(1, outputs=("y",)), asking(2, outputs=("y",)))
    assert executable.wanted == [("y",)]


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_one_bad_input_never_fails_its_mates(error: BaseException) -> None:
    executable = Scripted(refusing(13, error))
    batch = run(executable, asking(1), asking(13), asking(2, 3))
    assert batch.error is None
    assert values(batch.results[0]) == [2]
    assert batch.results[1] is None
    assert values(batch.results[2]) == [4, 6]
    assert isinstance(batch.errors[1], ModelFailed)
    assert type(error).__name__ in str(batch.errors[1])
    assert list(batch.errors) == [1]


def test_a_single_request_that_fails_is_not_run_twice() -> None:
    executable = Scripted(refusing(13, SystemExit(0)))
    batch = run(executable, asking(13))
    assert executable.runs == [1]
    assert isinstance(batch.error, ModelFailed)


def test_wrong_rows_are_told_to_each() -> None:
    def function(x: Any) -> dict[str, Any]:
        return {"y": np.zeros((len(x) + 1, 1), np.float32)}

    batch = run(Scripted(function), asking(1), asking(2))
    assert [batch.results, sorted(batch.errors)] == [[None, None], [0, 1]]
    assert "output 'y': expected 1 rows" in str(batch.errors[0])


def test_an_output_without_rows_is_told() -> None:
    batch = run(Scripted(lambda x: {"y": np.float32(1).reshape(())}), asking(1), asking(2))
    assert sorted(batch.errors) == [0, 1]


def test_a_model_that_cannot_batch_is_still_answered_one_by_one() -> None:
    def function(x: Any) -> dict[str, Any]:
        if len(x) > 1:
            raise RuntimeError("one at a time")
        return doubled(x)

    batch = run(Scripted(function), asking(1), asking(2))
    assert [values(result) for result in batch.results] == [[2], [4]]
    assert not batch.errors


def test_a_hang_is_not_tried_again() -> None:
    executable = Scripted(refusing(13, InlineHang("over 1000 ms")))
    batch = run(executable, asking(1), asking(13))
    assert executable.runs == [2]
    assert batch.hung
    assert isinstance(batch.error, ModelFailed)


def test_a_hang_in_the_second_try_ends_it() -> None:
    def function(x: Any) -> dict[str, Any]:
        if len(x) > 1:
            raise ValueError("try each")
        if 13 in x:
            raise ModelFailed("hung") from InlineHang("over 1000 ms")
        return doubled(x)

    executable = Scripted(function)
    batch = run(executable, asking(1), asking(13), asking(2))
    assert executable.runs == [3, 1, 1]
    assert batch.hung
    assert values(batch.results[0]) == [2]
    assert sorted(batch.errors) == [1, 2]


@pytest.mark.parametrize("error", [Unavailable("child is restarting"), InvalidArgument("no"), ModelFailed("m")])
def test_errors_of_ours_keep_their_code(error: IsochroneError) -> None:
    assert as_model_error(error, asking(1)) is error


def test_errors_of_the_model_name_it() -> None:
    error = as_model_error(ZeroDivisionError("by zero"), asking(1))
    assert isinstance(error, ModelFailed)
    assert str(error) == "model 'm' failed: ZeroDivisionError: by zero"


class Leaving(RecordedRequest):
    """Its caller goes between the first question for it and the second."""

    asked = 0

    @property
    def cancelled(self) -> bool:
        self.asked += 1
        return self.asked > 1

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        """The question decides."""


def test_a_caller_who_leaves_while_the_batch_is_sorted_is_not_lost() -> None:
    gone, leaving, stays = asking(1), Leaving(plan_of(), {"x": rows_of(2)}), asking(3)
    gone.cancelled = True
    leaving.asked = 0
    batch = run(Scripted(doubled), gone, leaving, stays)
    assert {*batch.requests, *batch.dropped} == {gone, leaving, stays}
    assert len(batch.requests) + len(batch.dropped) == 3


def test_everybody_is_named_once_at_any_point_of_the_run() -> None:
    gone, stays = asking(1), asking(2)
    batch = Batch([gone, stays], 2)
    assert batch.all_requests() == [gone, stays]
    # As another thread may find it: sorted by half.
    batch.dropped = [gone]
    assert batch.all_requests() == [gone, stays]
    batch.requests = [stays]
    assert set(batch.all_requests()) == {gone, stays}


def test_a_batch_remembers_that_it_was_run_one_by_one() -> None:
    bad = ValueError("bad row")
    assert run(Scripted(refusing(2, bad)), asking(1), asking(2)).retried is bad
    assert run(Scripted(refusing(2, bad)), asking(2)).retried is None
    assert run(Scripted(doubled), asking(1), asking(2)).retried is None


def test_the_error_a_caller_is_told_keeps_its_cause_for_the_log() -> None:
    cause = ValueError("bad row")
    assert as_model_error(cause, asking(1)).__cause__ is cause


class Dying(Scripted):
    """The process of an isolated model: the value 2 kills it, and after two deaths in a row it pauses."""

    def __init__(self, pause: float) -> None:
        super().__init__(doubled)
        self.pause = pause
        self.deaths = 0
        self.paused = False

    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        if self.paused:
            self.paused = False
            error = Unavailable("it is started again")
            error.retry_after = self.pause
            raise error
        if 2 in inputs["x"]:
            self.deaths += 1
            self.paused = self.deaths > 1
            raise ModelFailed("its process was killed")
        self.deaths = 0
        return super().execute(inputs, outputs)


@pytest.mark.parametrize("order", [(2, 1, 3), (1, 2, 3), (1, 3, 2)])
def test_the_mates_of_a_request_that_kills_the_process_are_served(order: tuple[int, ...]) -> None:
    batch = run(Dying(pause=0.001), *(asking(value) for value in order))
    culprit = order.index(2)
    assert list(batch.errors) == [culprit]
    assert isinstance(batch.errors[culprit], ModelFailed)
    assert [values(result) for result in batch.results if result is not None] == [[2.0 * v] for v in order if v != 2]


def test_a_long_pause_is_not_waited_for() -> None:
    batch = run(Dying(pause=5.0), asking(2), asking(1), asking(3))
    assert [type(batch.errors[index]) for index in sorted(batch.errors)] == [ModelFailed, Unavailable]
    assert [result is not None for result in batch.results] == [False, False, True]


def test_a_batch_that_lost_the_device_of_this_process_is_not_repeated() -> None:
    lost = DeviceLost("model 'm' version 1", "CUDA error: misaligned address")
    executable = Scripted(refusing(2, lost))
    batch = run(executable, asking(1), asking(2), asking(3))
    assert executable.runs == [3]
    assert batch.error is lost
    assert str(lost) == "model 'm' version 1: CUDA error: misaligned address"
