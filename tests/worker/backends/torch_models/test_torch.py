"""The torch backend: TorchScript and exported programs, how tensors find their places, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from config_text import parameter, tensors
from load_contexts import MakeContext

from isochrone.devices.device_array import on_host
from isochrone.errors import ConfigError, InvalidArgument, ModelFailed
from isochrone.worker.backends.torch.backend import load

ROWS = torch.export.Dim("rows", min=1, max=64)


class Subtract(torch.nn.Module):  # type: ignore[misc]
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left - right


class Two(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.sum(1)


class Named(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"other": x, "y": x.t(), "z": x + 1}


class Keyword(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return x * scale


class Grad(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(torch.is_grad_enabled())


def script(directory: Path, module: torch.nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module).save(str(directory / "model.pt"))


def export(directory: Path, module: torch.nn.Module, *arguments: torch.Tensor, **keywords: torch.Tensor) -> None:
    shapes: Any = ({0: ROWS},) * len(arguments)
    if keywords:
        shapes = [*shapes, *({0: ROWS} for _ in keywords)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, arguments, keywords or None, dynamic_shapes=shapes)
        torch.export.save(program, directory / "model.pt2")


def save(directory: Path, form: str, module: torch.nn.Module, *examples: torch.Tensor) -> None:
    if form == "pt":
        script(directory, module)
    else:
        export(directory, module, *examples)


def rows(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([[value] for value in values], np.float32)


@pytest.mark.parametrize("form", ["pt", "pt2"])
@pytest.mark.parametrize(
    ("left", "right", "sign"),
    [
        ("left", "right", 1),
        ("right", "left", -1),  # the arguments' own names, in another order
        ("INPUT__0", "INPUT__1", 1),
        ("a__1", "b__0", -1),
        ("first", "second", 1),
    ],
)
def test_inputs_find_their_arguments(
    tmp_path: Path, make_context: MakeContext, form: str, left: str, right: str, sign: int
) -> None:
    save(tmp_path, form, Subtract(), torch.ones(3, 1), torch.ones(3, 1))
    executable = load(make_context(tensors("input", **{left: "FP32", right: "FP32"}) + tensors("output", y="FP32")))
    assert not executable.inline_allowed
    for count in (1, 2, 5):
        y = executable.execute({left: rows(*[5] * count), right: rows(*[2] * count)}, None)["y"]
        assert y.dtype == np.float32
        assert y.tolist() == [[3 * sign]] * count
    executable.close()


@pytest.mark.parametrize("form", ["pt", "pt2"])
def test_outputs_in_order(tmp_path: Path, make_context: MakeContext, form: str) -> None:
    save(tmp_path, form, Two(), torch.ones(3, 2))
    executable = load(make_context(tensors("input", x="FP32") + tensors("output", double="FP32", total="FP32")))
    x = np.array([[1, 2], [3, 4]], np.float32)
    results = executable.execute({"x": x}, None)
    assert results["double"].tolist() == [[2, 4], [6, 8]]
    assert results["total"].tolist() == [3, 7]
    assert list(executable.execute({"x": x}, ("total",))) == ["total"]


def test_outputs_by_key_are_contiguous(tmp_path: Path, make_context: MakeContext) -> None:
    export(tmp_path, Named(), torch.ones(3, 2))
    executable = load(make_context(tensors("input", x="FP32") + tensors("output", z="FP32", y="FP32")))
    results = executable.execute({"x": np.array([[1, 2]], np.float32)}, None)
    assert results["z"].tolist() == [[2, 3]]
    assert results["y"].tolist() == [[1], [2]]
    assert results["y"].flags.c_contiguous


def test_keyword_arguments_of_an_export(tmp_path: Path, make_context: MakeContext) -> None:
    export(tmp_path, Keyword(), torch.ones(3, 1), scale=torch.ones(3, 1))
    executable = load(make_context(tensors("input", scale="FP32", x="FP32") + tensors("output", y="FP32")))
    assert executable.execute({"x": rows(2, 3), "scale": rows(10, 100)}, None)["y"].tolist() == [[20], [300]]


@pytest.mark.parametrize(("name", "dtype"), [("FP16", np.float16), ("BF16", ml_dtypes.bfloat16), ("UINT8", np.uint8)])
@pytest.mark.parametrize("writeable", [True, False])
def test_types_and_read_only_inputs(
    tmp_path: Path, make_context: MakeContext, name: str, dtype: Any, writeable: bool
) -> None:
    script(tmp_path, Subtract())
    config = tensors("input", left=name, right=name) + tensors("output", y=name)
    executable = load(make_context(config))
    left, right = np.array([[7.0]]).astype(dtype), np.array([[5.0]]).astype(dtype)
    left.flags.writeable = right.flags.writeable = writeable
    y = executable.execute({"left": left, "right": right}, None)["y"]
    assert y.dtype == dtype
    assert y.tolist() == [[2]]


@pytest.mark.parametrize("mode", ["1", "0"])
def test_no_gradients_are_kept_in_either_mode(tmp_path: Path, make_context: MakeContext, mode: str) -> None:
    script(tmp_path, Grad())
    config = tensors("input", x="FP32") + tensors("output", y="FP32") + parameter("INFERENCE_MODE", mode)
    assert load(make_context(config)).execute({"x": rows(1)}, None)["y"].tolist() == [[0]]


def test_thread_count_is_set(tmp_path: Path, make_context: MakeContext) -> None:
    before = torch.get_num_threads()
    script(tmp_path, Grad())
    config = tensors("input", x="FP32") + tensors("output", y="FP32") + parameter("intra_op_thread_count", "1")
    try:
        load(make_context(config))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"x__0": "FP32", "x__2": "FP32"}, {"y": "FP32"}, "input.name: expected names that end in __0, __1, given"),
        ({"a": "FP32", "b": "FP32", "c": "FP32"}, {"y": "FP32"}, "expected the arguments of forward: left, right"),
        ({"left": "STRING", "right": "FP32"}, {"y": "FP32"}, "data_type of 'left': expected a number type"),
    ],
)
def test_what_cannot_match_is_refused(
    tmp_path: Path, make_context: MakeContext, inputs: dict[str, str], outputs: dict[str, str], message: str
) -> None:
    script(tmp_path, Subtract())
    with pytest.raises(ConfigError, match=message):
        load(make_context(tensors("input", **inputs) + tensors("output", **outputs)))


@pytest.mark.parametrize("name", ["model.pt", "model.pt2"])
def test_a_corrupt_file_is_named(tmp_path: Path, make_context: MakeContext, name: str) -> None:
    (tmp_path / name).write_bytes(b"garbage" * 100)
    with pytest.raises(InvalidArgument, match=f"{name}: torch cannot load this file"):
        load(make_context(tensors("input", x="FP32") + tensors("output", y="FP32")))


def test_a_missing_file_is_named(make_context: MakeContext) -> None:
    with pytest.raises(ConfigError, match=r"model file: expected model\.pt2 or model\.pt, given no such file"):
        load(make_context(tensors("input", x="FP32") + tensors("output", y="FP32")))


def test_failures_name_model_and_output(tmp_path: Path, make_context: MakeContext) -> None:
    script(tmp_path, Subtract())
    inputs = {"left": rows(1, 2), "right": rows(1, 2, 3)}
    config = tensors("input", left="FP32", right="FP32")
    with pytest.raises(ModelFailed, match=r"model 'm' version 1: torch: RuntimeError: The size of tensor a"):
        load(make_context(config + tensors("output", y="FP32"))).execute(inputs, None)
    inputs = {"left": rows(1), "right": rows(1)}
    with pytest.raises(ModelFailed, match="output 'y': expected FP64, given FP32"):
        load(make_context(config + tensors("output", y="FP64"))).execute(inputs, None)
    with pytest.raises(ModelFailed, match="expected 2 outputs, given 1"):
        load(make_context(config + tensors("output", y="FP32", z="FP32"))).execute(inputs, None)


def test_a_tensor_of_a_device_comes_to_the_host_as_bfloat16() -> None:
    found = on_host(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert found.dtype == ml_dtypes.bfloat16
    assert found.astype(np.float32).tolist() == [1.5, -2.0]
