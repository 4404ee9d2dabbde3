"""The openvino backend: files, batches, types, Triton's parameters, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import openvino.opset13 as ops
import pytest
from config_text import parameter
from load_contexts import MakeContext
from onnx import TensorProto, helper

from isochrone.errors import ConfigError, InvalidArgument, ModelFailed
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.openvino.backend import load
from isochrone.worker.backends.openvino.properties import compile_properties, target_device


def save(directory: Path, shape: list[int], element: Any = np.float32) -> None:
    """y = 2 x."""
    x = ops.parameter(shape, element, name="x")
    y = ops.multiply(x, ops.constant(np.array(2, element)))
    x.output(0).set_names({"x"})
    y.output(0).set_names({"y"})
    openvino.save_model(openvino.Model([y], [x], "double"), directory / "model.xml", compress_to_fp16=False)


def config(batch: int, dims: str = "2", x: str = "FP32", y: str = "FP32", **parameters: str) -> str:
    text = f"""
        max_batch_size: {batch}
        input {{ name: "x" data_type: TYPE_{x} dims: [ {dims} ] }}
        output {{ name: "y" data_type: TYPE_{y} dims: [ {dims} ] }}
    """
    return text + "".join(parameter(key, value) for key, value in parameters.items())


def rows(count: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.arange(2 * count, dtype=dtype).reshape(count, 2)


@pytest.mark.parametrize("first", [-1, 1])
def test_any_batch_runs_even_if_the_file_has_one_row(tmp_path: Path, make_context: MakeContext, first: int) -> None:
    save(tmp_path, [first, 2])
    executable = load(make_context(config(8)))
    kept = []
    for count in (1, 3, 8):
        x = rows(count)
        x.flags.writeable = False
        y = executable.execute({"x": x}, None)["y"]
        assert y.tolist() == (2 * x).tolist()
        kept.append((y, 2 * x))
    # Answers own their memory.
    assert all(np.array_equal(y, expected) for y, expected in kept)
    assert executable.execute({"x": rows(1)}, ("y",)).keys() == {"y"}
    assert executable.execute({"x": rows(1)}, ()) == {}
    executable.close()


def test_a_model_without_batches(tmp_path: Path, make_context: MakeContext) -> None:
    save(tmp_path, [3, 2])
    assert load(make_context(config(0, "3, 2"))).execute({"x": rows(3)}, None)["y"].tolist() == (2 * rows(3)).tolist()


def test_an_onnx_file_by_its_name(tmp_path: Path, make_context: MakeContext) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    text = config(4) + 'default_model_filename: "model.onnx"'
    assert load(make_context(text)).execute({"x": rows(2)}, None)["y"].tolist() == (2 * rows(2)).tolist()


def save_unnamed(directory: Path) -> None:
    """x + x, x * 4, without a name for any tensor."""
    x = ops.parameter([1, 2], np.float32)
    four = ops.constant(np.array(4, np.float32))
    model = openvino.Model([ops.add(x, x), ops.multiply(x, four)], [x], "two_and_four")
    for port in (*model.inputs, *model.outputs):
        port.set_names(set())
    openvino.save_model(model, directory / "model.xml", compress_to_fp16=False)


def output(name: str) -> str:
    return f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }}'


def test_unnamed_tensors_are_matched_by_position(tmp_path: Path, make_context: MakeContext) -> None:
    save_unnamed(tmp_path)
    # The types are converted, too, which builds a new model.
    results = load(make_context(config(8, x="INT32", y="FP64") + output("z"))).execute({"x": rows(3, np.int32)}, None)
    assert results["y"].tolist() == (2 * rows(3)).tolist()
    assert results["z"].tolist() == (4 * rows(3)).tolist()


def test_unnamed_tensors_have_the_names_of_their_positions(tmp_path: Path, make_context: MakeContext) -> None:
    save_unnamed(tmp_path)
    text = config(8).replace('"x"', '"input__0"').replace('"y"', '"output__1"')
    assert load(make_context(text)).execute({"input__0": rows(3)}, None)["output__1"].tolist() == (4 * rows(3)).tolist()
    # It declares one of two outputs, and does not say which.
    expected = r"output\.name: expected one of the outputs of model\.xml: output__0, output__1, given 'y'"
    with pytest.raises(ConfigError, match=expected):
        load(make_context(config(8)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_converted_module_of_torch(tmp_path: Path, make_context: MakeContext) -> None:
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x * 2.0

    converted = openvino.convert_model(Scaled(), example_input=torch.ones(1, 2))
    openvino.save_model(converted, tmp_path / "model.xml", compress_to_fp16=False)
    assert load(make_context(config(8))).execute({"x": rows(3)}, None)["y"].tolist() == (2 * rows(3)).tolist()


def test_declared_types_are_converted(tmp_path: Path, make_context: MakeContext) -> None:
    save(tmp_path, [-1, 2])
    executable = load(make_context(config(4, x="INT32", y="FP64")))
    y = executable.execute({"x": rows(2, np.int32)}, None)["y"]
    assert y.dtype == np.float64
    assert y.tolist() == (2 * rows(2)).tolist()


def test_padding_of_fixed_batches(tmp_path: Path, make_context: MakeContext) -> None:
    save(tmp_path, [1, 2])
    fixed = {"SKIP_OV_DYNAMIC_BATCHSIZE": "YES"}
    padded = load(make_context(config(4, **fixed, ENABLE_BATCH_PADDING="YES")))
    for count in (1, 4):
        y = padded.execute({"x": rows(count)}, None)["y"]
        assert y.tolist() == (2 * rows(count)).tolist()
        assert y.flags.c_contiguous
    strict = load(make_context(config(4, **fixed)))
    assert strict.execute({"x": rows(4)}, None)["y"].shape == (4, 2)
    with pytest.raises(ModelFailed, match=r"expected batches of 4 rows .* given 3"):
        strict.execute({"x": rows(3)}, None)


def test_inputs_are_reshaped_to_the_configuration(tmp_path: Path, make_context: MakeContext) -> None:
    save(tmp_path, [1, 5])
    with pytest.raises(InvalidArgument, match=r"the model expects 2 dimensions \(shape \[-1,5\]\)"):
        load(make_context(config(4)))
    executable = load(make_context(config(4, RESHAPE_IO_LAYERS="YES")))
    assert executable.execute({"x": rows(3)}, None)["y"].tolist() == (2 * rows(3)).tolist()


def test_a_failing_run_names_the_model(tmp_path: Path, make_context: MakeContext) -> None:
    save(tmp_path, [-1, 2])
    with pytest.raises(ModelFailed, match="model 'm' version 1: openvino: "):
        load(make_context(config(4))).execute({"x": np.zeros((1, 7), np.float32)}, None)


def context_of(make_context: MakeContext, **parameters: str) -> LoadContext:
    return make_context(config(4, **parameters))


def test_defaults_are_one_thread_and_one_stream(make_context: MakeContext) -> None:
    assert compile_properties(context_of(make_context), "CPU", ()) == {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": 1,
        "ENABLE_CPU_PINNING": False,
        "NUM_STREAMS": 1,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"INFERENCE_NUM_THREADS": "2"}, {"INFERENCE_NUM_THREADS": 2}),
        ({"INFERENCE_NUM_THREADS": "0"}, {"INFERENCE_NUM_THREADS": None}),
        ({"COMPILATION_NUM_THREADS": "2"}, {"COMPILATION_NUM_THREADS": 2}),
        ({"NUM_STREAMS": "auto"}, {"NUM_STREAMS": "AUTO"}),
        ({"NUM_STREAMS": "NUMA"}, {"NUM_STREAMS": "NUMA"}),
        ({"NUM_STREAMS": "2"}, {"NUM_STREAMS": 2}),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": None}),
        ({"HINT_BF16": "YES"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
    ],
)
def test_tritons_parameters(make_context: MakeContext, given: dict[str, str], expected: dict[str, Any]) -> None:
    properties = compile_properties(context_of(make_context, **given), "CPU", ("COMPILATION_NUM_THREADS",))
    assert {key: properties.get(key) for key in expected} == expected


@pytest.mark.parametrize("hint", ["LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"])
def test_openvino_takes_the_properties(tmp_path: Path, make_context: MakeContext, hint: str) -> None:
    save(tmp_path, [-1, 2])
    given = {"PERFORMANCE_HINT": hint, "INFERENCE_NUM_THREADS": "2", "NUM_STREAMS": "1", "COMPILATION_NUM_THREADS": "1"}
    executable = load(context_of(make_context, **given))
    assert executable.execute({"x": rows(1)}, None)["y"].tolist() == [[0, 2]]


def test_threads_of_compilation_are_left_out_where_the_device_does_not_know_them(make_context: MakeContext) -> None:
    context = context_of(make_context, COMPILATION_NUM_THREADS="2")
    assert "COMPILATION_NUM_THREADS" not in compile_properties(context, "CPU", ())


def test_devices(make_context: MakeContext) -> None:
    assert target_device(context_of(make_context), ["CPU"]) == "CPU"
    assert target_device(context_of(make_context, TARGET_DEVICE="gpu"), ["CPU", "GPU.0"]) == "GPU"
    assert target_device(context_of(make_context, TARGET_DEVICE="AUTO:CPU"), ["CPU"]) == "AUTO:CPU"
    with pytest.raises(ConfigError, match="finds on this machine: CPU, AUTO, MULTI, HETERO, BATCH, given 'NPU'"):
        target_device(context_of(make_context, TARGET_DEVICE="NPU"), ["CPU"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (config(4).replace('"x"', '"z"'), r"input\.name: expected one of the inputs of model\.xml: x, given 'z'"),
        (config(4).replace('"y"', '"z"'), r"output\.name: expected one of the outputs of model\.xml: y, given 'z'"),
        (config(4, x="STRING"), "input 'x' data_type: expected one of BOOL"),
        (config(4, NUM_STREAMS="many"), r'parameters\["NUM_STREAMS"\]: expected AUTO, NUMA or an integer'),
        (config(4, PERFORMANCE_HINT="fast"), r'parameters\["PERFORMANCE_HINT"\]: expected one of latency'),
        (config(4, INFERENCE_NUM_THREADS="-1"), r'parameters\["INFERENCE_NUM_THREADS"\]: expected an integer >= 0'),
        (config(4) + "sequence_batching { direct { } }", "sequence_batching: expected none"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, make_context: MakeContext, text: str, message: str) -> None:
    save(tmp_path, [-1, 2])
    with pytest.raises(ConfigError, match=message):
        load(make_context(text))


def test_every_input_of_the_file_must_be_declared(tmp_path: Path, make_context: MakeContext) -> None:
    ports = [ops.parameter([-1, 2], np.float32, name=name) for name in "xw"]
    for port, name in zip(ports, "xw", strict=True):
        port.output(0).set_names({name})
    y = ops.add(*ports)
    y.output(0).set_names({"y"})
    openvino.save_model(openvino.Model([y], ports, "sum"), tmp_path / "model.xml")
    with pytest.raises(ConfigError, match=r"input: expected every input of model\.xml, given none for w"):
        load(make_context(config(4)))


def test_missing_and_corrupt_files_are_named(tmp_path: Path, make_context: MakeContext) -> None:
    with pytest.raises(
        ConfigError, match=r"model\.xml: model file: expected a model that OpenVINO reads, given no such"
    ):
        load(make_context(config(4)))
    (tmp_path / "model.xml").write_text("garbage")
    with pytest.raises(ConfigError, match=r"model\.bin: model file: expected the weights of model\.xml"):
        load(make_context(config(4)))
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(InvalidArgument, match=r"model\.xml: OpenVINO cannot load this file"):
        load(make_context(config(4)))
