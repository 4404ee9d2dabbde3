"""Configurations that are completed from a model.xml."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import openvino
import openvino.opset13 as ops
import pytest

from isochrone.errors import ConfigError
from isochrone.models.configuration.completion import complete
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.file_tensors import FileTensor
from isochrone.models.openvino_file import read_openvino_tensors


def save(path: Path, shape: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    x = ops.parameter(shape, np.float32, name="x")
    y = ops.convert(x, "i64")
    x.output(0).set_names({"x"})
    y.output(0).set_names({"y"})
    openvino.save_model(openvino.Model([y], [x], "rounded"), path, compress_to_fp16=False)


def test_tensors_of_a_file(tmp_path: Path) -> None:
    save(tmp_path / "model.xml", [-1, 3])
    inputs, outputs = read_openvino_tensors(tmp_path / "model.xml")
    assert inputs == (FileTensor("x", "FP32", (-1, 3)),)
    assert outputs == (FileTensor("y", "INT64", (-1, 3)),)


@pytest.mark.parametrize(
    ("text", "shape", "batch", "dims"),
    [
        ("", [-1, 3], 32, [3]),
        ("", [1, 3], 0, [1, 3]),
        ("max_batch_size: 0", [-1, 3], 0, [-1, 3]),
        # The backend frees the first dimension itself.
        ('backend: "openvino" max_batch_size: 8', [1, 3], 8, [3]),
    ],
)
def test_completion(tmp_path: Path, text: str, shape: list[int], batch: int, dims: list[int]) -> None:
    save(tmp_path / "m" / "1" / "model.xml", shape)
    parsed, _ = parse_text(text, "m/config.pbtxt")
    config, assumed = complete(
        parsed, tmp_path / "m", {1: tmp_path / "m" / "1"}, max_batch_size_stated="max_batch_size" in text
    )
    assert (config.backend, config.default_model_filename) == ("openvino", "model.xml")
    assert config.max_batch_size == batch
    assert config.HasField("dynamic_batching") is (batch == 32)
    assert [(tensor.name, list(tensor.dims)) for tensor in (*config.input, *config.output)] == [
        ("x", dims),
        ("y", dims),
    ]
    assert any("from model.xml" in sentence for sentence in assumed)


def save_unnamed(path: Path) -> None:
    """x + w, x - w, where ``x`` alone has a name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x, w = (ops.parameter([-1, 3], np.float32) for _ in range(2))
    model = openvino.Model([ops.add(x, w), ops.subtract(x, w)], [x, w], "both")
    for port in (*model.inputs, *model.outputs):
        port.set_names(set())
    model.inputs[0].set_names({"x"})
    openvino.save_model(model, path, compress_to_fp16=False)


@pytest.mark.parametrize(
    ("text", "inputs", "outputs"),
    [
        ("", ["x", "input__1"], ["output__0", "output__1"]),
        ('input [ { name: "w" }, { name: "x" } ]', ["w", "x"], ["output__0", "output__1"]),
        ('output [ { name: "sum" }, { name: "difference" } ]', ["x", "input__1"], ["sum", "difference"]),
        ('output [ { name: "output__1" }, { name: "sum" } ]', ["x", "input__1"], ["output__1", "sum"]),
        ('output { name: "output__1" }', ["x", "input__1"], ["output__1"]),
    ],
)
def test_unnamed_tensors_have_the_names_of_the_configuration_or_of_their_positions(
    tmp_path: Path, text: str, inputs: list[str], outputs: list[str]
) -> None:
    save_unnamed(tmp_path / "m" / "1" / "model.xml")
    parsed, _ = parse_text(text, "m/config.pbtxt")
    config, _ = complete(parsed, tmp_path / "m", {1: tmp_path / "m" / "1"})
    assert [tensor.name for tensor in config.input] == inputs
    assert [tensor.name for tensor in config.output] == outputs
    assert all(list(tensor.dims)[-1:] == [3] and tensor.data_type for tensor in (*config.input, *config.output))


def test_an_unnamed_tensor_is_not_chosen_for_a_name_if_others_are_left_out(tmp_path: Path) -> None:
    save_unnamed(tmp_path / "m" / "1" / "model.xml")
    parsed, _ = parse_text('output { name: "sum" }', "m/config.pbtxt")
    with pytest.raises(ConfigError, match=r"output\[0\]\.name: expected one of output__0, output__1 .* given 'sum'"):
        complete(parsed, tmp_path / "m", {1: tmp_path / "m" / "1"})


def test_files_that_tell_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    with pytest.raises(ConfigError, match="expected a model that OpenVINO reads, given no such file"):
        read_openvino_tensors(path)
    path.write_text("garbage")
    with pytest.raises(ConfigError, match="expected a model that OpenVINO reads, given "):
        read_openvino_tensors(path)
    x = ops.parameter([-1, 3], openvino.Type.bf16, name="x")
    openvino.save_model(openvino.Model([ops.convert(x, "f32")], [x], "wide"), path)
    with pytest.raises(ConfigError, match=r"input 'x': expected a tensor of one of BOOL, .*, given bf16"):
        read_openvino_tensors(path)
    x = ops.parameter([-1, 3], openvino.Type.dynamic, name="x")
    openvino.save_model(openvino.Model([ops.add(x, x)], [x], "any"), path)
    with pytest.raises(ConfigError, match=r"input 'x': expected a known datatype \(openvino\.convert_model learns it"):
        read_openvino_tensors(path)


def test_without_openvino_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "model.xml", [-1, 3])
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ConfigError, match=r"expected openvino to be installed \(pip install isochrone\[openvino\]\)"):
        read_openvino_tensors(tmp_path / "model.xml")
