"""Warm-up: which sizes run, on what, and that the curve knows them afterwards."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError, ModelFailed
from isochrone.models.repository.description import ModelDescription
from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import Executable
from isochrone.worker.catalog.warmup import batch_sizes, warm_up
from isochrone.worker.scheduling.latency_curve import LatencyCurve

BATCHED = """
    max_batch_size: 8
    input { name: "X" data_type: TYPE_FP32 dims: [-1, 3] }
    input { name: "S" data_type: TYPE_STRING dims: [1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [1] }
"""


class Watching(Executable):
    """Notes the inputs of every run."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.runs: list[dict[str, Any]] = []
        self.error = error

    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        self.runs.append(inputs)
        if self.error is not None:
            raise self.error
        return {}

    def close(self) -> None:
        pass


def describe(text: str, directory: Path = Path("/nonexistent")) -> ModelDescription:
    config = text_format.Parse('name: "m"' + text, model_config_pb2.ModelConfig())
    return ModelDescription(
        name="m",
        directory=directory,
        config=config,
        signature=signature_of(config),
        assumed=(),
        versions={1: directory / "1"},
        ignored=(),
    )


def warmed(text: str, executable: Any = None, directory: Path = Path("/nonexistent")) -> tuple[Any, LatencyCurve]:
    description = describe(text, directory)
    curve = LatencyCurve(max(1, description.config.max_batch_size))
    executable = executable or Watching()
    warm_up(executable, description, curve)
    return executable, curve


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("max_batch_size: 0", [1]),
        ("max_batch_size: 1", [1]),
        ("max_batch_size: 8", [1, 2, 4, 8]),
        ("max_batch_size: 12", [1, 2, 4, 8, 12]),
        ("max_batch_size: 12 dynamic_batching { preferred_batch_size: [6] }", [1, 2, 4, 6, 8, 12]),
    ],
)
def test_the_sizes_that_will_be_used(text: str, sizes: list[int]) -> None:
    assert batch_sizes(describe(text).config) == sizes


def test_every_size_is_run_more_than_once_and_the_curve_is_known() -> None:
    executable, curve = warmed(BATCHED)
    rows = [len(inputs["X"]) for inputs in executable.runs]
    assert sorted(set(rows)) == [1, 2, 4, 8]
    assert all(rows.count(size) > 1 for size in set(rows))
    assert all(curve.mean(size) > 0 for size in (1, 2, 4, 8))


def test_zeros_have_the_declared_types_and_free_dimensions_are_one() -> None:
    executable, _ = warmed(BATCHED)
    inputs = executable.runs[0]
    assert (inputs["X"].shape, inputs["X"].dtype) == ((1, 1, 3), np.float32)
    assert inputs["S"].tolist() == [[b""]]


def test_a_model_without_batching_gets_no_batch_dimension() -> None:
    executable, _ = warmed('input { name: "X" data_type: TYPE_INT64 dims: [2] }')
    assert executable.runs[0]["X"].shape == (2,)


def test_a_model_that_fails_with_zeros_fails_the_load_in_its_own_words() -> None:
    with pytest.raises(ModelFailed) as caught:
        warmed(BATCHED, Watching(ValueError("index 7 is out of range")))
    assert "model 'm': automatic warm-up, with zeros as inputs, failed: index 7 is out of range" in str(caught.value)
    # What to do for one that is right all the same.
    assert "model_warmup" in str(caught.value)
    assert 'auto_warmup: "false"' in str(caught.value)


class WritesToItsInput(Watching):
    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        inputs["X"] += 1
        return {}


@pytest.mark.parametrize("sample", [False, True])
def test_inputs_are_read_only_as_those_of_requests(sample: bool) -> None:
    text = BATCHED + SAMPLE % "zero_data: true" if sample else BATCHED
    with pytest.raises(ModelFailed) as caught:
        warmed(text, WritesToItsInput())
    assert str(caught.value).endswith(
        "output array is read-only (inputs are read-only; a model that changes one needs a copy of it: x = x.copy())"
    )


class PickyAboutZeros(Watching):
    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        if not inputs["X"].any():
            raise ValueError("division by zero")
        return super().execute(inputs, outputs)


def test_a_model_whose_samples_run_need_not_take_zeros() -> None:
    text = BATCHED + (SAMPLE % "random_data: true").replace('"false"', '"true"')
    executable, curve = warmed(text, PickyAboutZeros())
    assert len(executable.runs) == 4
    assert curve.mean(2) > 0


class Giving(Watching):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        super().execute(inputs, outputs)
        return {"Y": np.resize(self.output, (len(inputs["X"]), *self.output.shape)), "state": np.zeros(9)}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (np.zeros(1, np.float64), "output 'Y': expected FP32 as config.pbtxt declares, given FP64"),
        (np.zeros(1, np.int32), "output 'Y': expected FP32 as config.pbtxt declares, given INT32"),
        (np.zeros(2, np.float32), "output 'Y': expected shape [1,1] as config.pbtxt declares, given [1,2]"),
        (np.zeros((), np.float32), "output 'Y': expected shape [1,1] as config.pbtxt declares, given [1]"),
    ],
)
@pytest.mark.parametrize("sample", [False, True])
def test_outputs_that_are_not_as_declared_fail_the_load(output: Any, expected: str, sample: bool) -> None:
    text = BATCHED + (SAMPLE % "zero_data: true").replace("batch_size: 2", "batch_size: 1") if sample else BATCHED
    # Without advice on the inputs: the model took them.
    with pytest.raises(ModelFailed, match=re.escape(expected) + "$"):
        warmed(text, Giving(output))
    warmed(text, Giving(np.zeros(1, np.float32)))


def test_free_dimensions_of_outputs_are_free() -> None:
    text = BATCHED.replace('name: "Y" data_type: TYPE_FP32 dims: [1]', 'name: "Y" data_type: TYPE_FP32 dims: [-1]')
    warmed(text, Giving(np.zeros(7, np.float32)))


def test_automatic_warm_up_can_be_switched_off() -> None:
    executable, _ = warmed(BATCHED + 'parameters { key: "auto_warmup" value { string_value: "false" } }')
    assert not executable.runs


def test_stateful_models_are_not_fed_zeros() -> None:
    executable, _ = warmed(BATCHED + "sequence_batching { }")
    assert not executable.runs


SAMPLE = """
    parameters { key: "auto_warmup" value { string_value: "false" } }
    model_warmup { name: "sample" batch_size: 2 count: 3
      inputs { key: "X" value { data_type: TYPE_FP32 dims: [1, 3] %s } }
      inputs { key: "S" value { data_type: TYPE_STRING dims: [1] zero_data: true } } }
"""


def test_samples_are_run_as_often_as_said(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    np.array([[1, 2, 3]], np.float32).tofile(tmp_path / "warmup" / "x.bin")
    executable, _ = warmed(BATCHED + SAMPLE % 'input_data_file: "x.bin"', directory=tmp_path)
    assert len(executable.runs) == 4
    assert executable.runs[0]["X"].tolist() == [[[1, 2, 3]]] * 2


def test_random_samples_are_random() -> None:
    executable, _ = warmed(BATCHED + SAMPLE % "random_data: true")
    assert len(np.unique(executable.runs[0]["X"])) > 1


def test_a_sample_that_fails_fails_the_load() -> None:
    with pytest.raises(ModelFailed, match="warm-up sample 'sample' failed: no"):
        warmed(BATCHED + SAMPLE % "zero_data: true", Watching(ValueError("no")))


def test_a_missing_or_wrong_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.bin: model_warmup input 'X'"):
        warmed(BATCHED + SAMPLE % 'input_data_file: "gone.bin"', directory=tmp_path)
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short.bin").write_bytes(b"123")
    with pytest.raises(ConfigError, match=r"short\.bin: model_warmup input 'X'"):
        warmed(BATCHED + SAMPLE % 'input_data_file: "short.bin"', directory=tmp_path)


class Streaming(Watching):
    decoupled = True

    def stream(self, inputs: dict[str, Any], parameters: Any) -> Iterator[dict[str, Any]]:
        for _ in range(2):
            self.runs.append(inputs)
            yield {}


class StreamingAsync(Watching):
    decoupled = True
    is_async = True

    async def stream(self, inputs: dict[str, Any], parameters: Any) -> AsyncIterator[dict[str, Any]]:
        for _ in range(2):
            self.runs.append(inputs)
            yield {}


@pytest.mark.parametrize("executable", [Streaming(), StreamingAsync()])
def test_samples_of_a_decoupled_model_are_read_to_the_end(executable: Watching) -> None:
    warmed(BATCHED + SAMPLE % "zero_data: true", executable)
    assert len(executable.runs) == 8


def test_the_configuration_stays_as_it_is() -> None:
    """It is the digest's: two versions of a model share one, and warming the first must not change the second's."""
    description = describe(BATCHED + 'parameters { key: "mean" value { string_value: "1" } }')
    before = description.config.SerializeToString(deterministic=True)
    warm_up(Watching(), description, LatencyCurve(8))
    assert description.config.SerializeToString(deterministic=True) == before
