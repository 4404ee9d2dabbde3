"""The onnx backend on small graphs: right results, whose memory they are, options, and files that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from config_text import parameter
from config_text import tensors as tensors_of_rank
from load_contexts import MakeContext
from onnx import TensorProto, helper, numpy_helper

from isochrone.errors import ConfigError, InvalidArgument, ModelFailed
from isochrone.worker.backends import session_calls
from isochrone.worker.backends.onnx import options as onnx_options
from isochrone.worker.backends.onnx.backend import ConvertingExecutable, OnnxExecutable, load


def tensors(direction: str, **data_types: str) -> str:
    """As the graphs here have them: rows of any length."""
    return tensors_of_rank(direction, 2, **data_types)


FLOATS = tensors("input", x="FP32") + tensors("output", y="FP32")


def write(path: Path, nodes: list[Any], inputs: dict[str, int], outputs: dict[str, int], weights: Any = ()) -> None:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, ["n", None]) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, kind, ["m", None]) for name, kind in outputs.items()],
        list(weights),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))


def write_mlp(directory: Path, size: int = 4) -> np.ndarray[Any, Any]:
    weights = np.arange(size * size, dtype=np.float32).reshape(size, size)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    initializer = [numpy_helper.from_array(weights, "w")]
    write(directory / "model.onnx", nodes, {"x": TensorProto.FLOAT}, {"y": TensorProto.FLOAT}, initializer)
    return weights


def write_identity(directory: Path, kind: int) -> None:
    write(directory / "model.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})


@pytest.mark.parametrize("binding", ["1", "0"])
def test_results_are_right_for_every_batch_and_belong_to_the_caller(
    tmp_path: Path, make_context: MakeContext, binding: str
) -> None:
    weights = write_mlp(tmp_path)
    executable = load(make_context(FLOATS + parameter("io_binding", binding)))
    kept = []
    for step in range(12):
        x = np.full((1 + step % 3, 4), step - 2, np.float32)
        x.flags.writeable = False
        kept.append((x, executable.execute({"x": x}, None)["y"]))
    for x, y in kept:
        np.testing.assert_array_equal(y, np.maximum(x @ weights, 0))
        assert y.flags.writeable
    executable.close()


def test_a_shape_seen_before_runs_bound_and_a_large_one_never_does(tmp_path: Path, make_context: MakeContext) -> None:
    write_mlp(tmp_path)
    executable = load(make_context(FLOATS))
    assert isinstance(executable, OnnxExecutable)
    for _ in range(20):  # a run that the machine held up is not taken for the model's own time
        executable.execute({"x": np.ones((2, 4), np.float32)}, None)
        executable.execute({"x": np.ones((2000, 4), np.float32)}, None)
    bound = {key[1]: binding is not None for key, binding in executable._bindings.items()}
    assert bound == {(2, 4): True, (2000, 4): False}


def test_outputs_whose_shape_depends_on_the_data_stay_right(tmp_path: Path, make_context: MakeContext) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["y"]),
    ]
    write(tmp_path / "model.onnx", nodes, {"x": TensorProto.FLOAT}, {"y": TensorProto.INT64})
    executable = load(make_context(tensors("input", x="FP32") + tensors("output", y="INT64")))
    for count in (2, 2, 1, 4, 3):
        x = np.zeros((1, 4), np.float32)
        x[0, :count] = 1
        assert executable.execute({"x": x}, None)["y"].tolist() == [[0] * count, list(range(count))]


def test_random_graphs_are_not_bound(tmp_path: Path, make_context: MakeContext) -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"])]
    write(tmp_path / "model.onnx", nodes, {"x": TensorProto.FLOAT}, {"y": TensorProto.FLOAT})
    executable = load(make_context(FLOATS))
    x = np.zeros((1, 4), np.float32)
    draws = [executable.execute({"x": x}, None)["y"].tobytes() for _ in range(4)]
    assert len(set(draws)) == 4


@pytest.mark.parametrize("rows", [1, 5000])
def test_outputs_share_no_memory_with_inputs(tmp_path: Path, make_context: MakeContext, rows: int) -> None:
    write(tmp_path / "model.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": 1}, {"x": 1, "y": 1})
    executable = load(make_context(FLOATS + tensors("output", x="FP32")))
    assert executable.fresh_outputs
    x = np.ones((rows, 4), np.float32)
    for _ in range(3):
        results = executable.execute({"x": x}, None)
        assert not any(np.shares_memory(array, x) for array in results.values())


def test_only_the_wanted_outputs_come_back(tmp_path: Path, make_context: MakeContext) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])]
    kinds = {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}
    write(tmp_path / "model.onnx", nodes, {"x": TensorProto.FLOAT}, kinds)
    executable = load(make_context(FLOATS + tensors("output", z="FP32")))
    x = np.array([[-2.0]], np.float32)
    for _ in range(3):
        assert list(executable.execute({"x": x}, None)) == ["y", "z"]
        assert executable.execute({"x": x}, ("z",))["z"].tolist() == [[2.0]]
        assert list(executable.execute({"x": x}, ("z",))) == ["z"]


def test_a_bad_batch_fails_alone(tmp_path: Path, make_context: MakeContext) -> None:
    indices = [helper.make_node("Gather", ["w", "x"], ["y"])]
    initializer = [numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")]
    write(tmp_path / "model.onnx", indices, {"x": TensorProto.INT64}, {"y": TensorProto.FLOAT}, initializer)
    executable = load(make_context(tensors("input", x="INT64") + tensors("output", y="FP32")))
    good, bad = np.array([[1, 2]]), np.array([[1, 7]])
    for _ in range(3):
        assert executable.execute({"x": good}, None)["y"].tolist() == [[1, 2]]
        with pytest.raises(ModelFailed, match=r"model 'm' version 1: onnxruntime: .*out of data bounds"):
            executable.execute({"x": bad}, None)


@pytest.mark.parametrize(
    ("kind", "name", "dtype"),
    [
        (TensorProto.BOOL, "BOOL", np.bool_),
        (TensorProto.INT8, "INT8", np.int8),
        (TensorProto.UINT64, "UINT64", np.uint64),
        (TensorProto.FLOAT16, "FP16", np.float16),
        (TensorProto.DOUBLE, "FP64", np.float64),
        (TensorProto.BFLOAT16, "BF16", ml_dtypes.bfloat16),
    ],
)
@pytest.mark.parametrize("rows", [2, 0])
def test_every_kind_of_number(
    tmp_path: Path, make_context: MakeContext, kind: int, name: str, dtype: Any, rows: int
) -> None:
    write_identity(tmp_path, kind)
    executable = load(make_context(tensors("input", x=name) + tensors("output", y=name)))
    x = np.ones((rows, 3), dtype)
    for _ in range(3):
        y = executable.execute({"x": x}, None)["y"]
        assert y.dtype == x.dtype
        assert y.shape == x.shape
        assert y.tobytes() == x.tobytes()


def write_identities(directory: Path, **kinds: int) -> None:
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in kinds]
    write(directory / "model.onnx", nodes, kinds, {f"{name}_out": kind for name, kind in kinds.items()})


def test_bfloat16_beside_floats(tmp_path: Path, make_context: MakeContext) -> None:
    write_identities(tmp_path, b=TensorProto.BFLOAT16, f=TensorProto.FLOAT)
    config = tensors("input", b="BF16", f="FP32") + tensors("output", b_out="BF16", f_out="FP32")
    executable = load(make_context(config))
    assert isinstance(executable, ConvertingExecutable)
    b, f = np.array([[1.5, -2]], ml_dtypes.bfloat16), np.array([[0.25]], np.float32)
    results = executable.execute({"b": b, "f": f}, None)
    assert results["b_out"].dtype == ml_dtypes.bfloat16
    assert results["b_out"].tolist() == [[1.5, -2]]
    assert results["f_out"].tolist() == [[0.25]]
    assert list(executable.execute({"b": b, "f": f}, ("f_out",))) == ["f_out"]


def test_strings_beside_bfloat16_inputs(tmp_path: Path, make_context: MakeContext) -> None:
    write_identities(tmp_path, b=TensorProto.BFLOAT16, s=TensorProto.STRING)
    inputs = tensors("input", b="BF16", s="STRING")
    executable = load(make_context(inputs + tensors("output", s_out="STRING")))
    b, s = np.array([[1.5]], ml_dtypes.bfloat16), np.array([[b"caf\xc3\xa9", b"", b"a\0"]], np.object_)
    results = executable.execute({"b": b, "s": s}, None)
    assert results["s_out"].dtype == np.object_
    assert results["s_out"].tolist() == [[b"caf\xc3\xa9", b"", b"a\0"]]
    with pytest.raises(ConfigError, match=r"output\.data_type: expected no BF16 beside BYTES inputs"):
        load(make_context(inputs + tensors("output", s_out="STRING", b_out="BF16")))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path, make_context: MakeContext) -> None:
    write_identity(tmp_path, TensorProto.STRING)
    executable = load(make_context(tensors("input", x="STRING") + tensors("output", y="STRING")))
    with pytest.raises(InvalidArgument, match="input 'x' element 1: expected UTF-8"):
        executable.execute({"x": np.array([[b"fine", b"\xff\xfe"]], np.object_)}, None)


@pytest.mark.parametrize("content", [b"", b"garbage" * 10, b"\x08\x08\x12\xff\xff\xff\xff\x0f"])
def test_a_corrupt_file_is_named(tmp_path: Path, make_context: MakeContext, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"model\.onnx: onnxruntime cannot load this file"):
        load(make_context(FLOATS))


def test_a_truncated_file_is_named(tmp_path: Path, make_context: MakeContext) -> None:
    write_mlp(tmp_path)
    path = tmp_path / "model.onnx"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InvalidArgument, match=r"model\.onnx: onnxruntime cannot load this file"):
        load(make_context(FLOATS))


def test_a_missing_file_is_named(make_context: MakeContext) -> None:
    with pytest.raises(ConfigError, match=r"other\.onnx: model file: expected an onnx file, given no such file"):
        load(make_context('default_model_filename: "other.onnx"' + FLOATS))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (tensors("input", x="FP32") + tensors("output", z="FP32"), r"output.name: expected one of .*: y, given 'z'"),
        (tensors("input", q="FP32") + tensors("output", y="FP32"), r"input.name: expected one of .*: x, given 'q'"),
        (tensors("input", x="INT32") + tensors("output", y="FP32"), r"input 'x' data_type: expected FP32"),
        (tensors("output", y="FP32"), r"input: expected every input of model.onnx: x, given none for x"),
        (FLOATS + parameter("intra_op_thread_count", "two"), r'"intra_op_thread_count".*>= 1, given \'two\''),
        (FLOATS + parameter("inter_op_thread_count", "0"), r'"inter_op_thread_count".*>= 1, given \'0\''),
        (FLOATS + parameter("enable_mem_arena", "maybe"), r"a boolean .*, given 'maybe'"),
        (FLOATS + parameter("execution_mode", "fast"), r"one of 0, 1, sequential, parallel, given 'fast'"),
        (FLOATS + parameter("providers", "CUDAExecutionProvider"), r"\(.*CPUExecutionProvider\), given 'CUDAEx"),
        (FLOATS + parameter("provider_options", "{"), "a JSON object of objects"),
        (FLOATS + parameter("provider_options", '{"Other": {}}'), "a JSON object of objects"),
        (FLOATS + "optimization { graph { level: 5 } }", r"optimization.graph.level: expected -1 .*, given 5"),
        (
            FLOATS + 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }',
            r"optimization.execution_accelerators: .*given 'TensorrtExecutionProvider'",
        ),
    ],
)
def test_what_the_file_or_this_build_contradicts_is_refused(
    tmp_path: Path, make_context: MakeContext, config: str, message: str
) -> None:
    write_mlp(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load(make_context(config))


def test_session_options_follow_the_configuration(make_context: MakeContext) -> None:
    config = FLOATS + "optimization { graph { level: -1 } }"
    config += parameter("intra_op_thread_count", "3") + parameter("execution_mode", "1")
    config += parameter("enable_mem_arena", "0") + parameter("memory.enable_memory_pattern", "false")
    config += parameter("allow_spinning", "1")
    options = onnx_options.session_options(make_context(config, cpus=(4, 6)))
    assert options.intra_op_num_threads == 3
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.enable_cpu_mem_arena is False
    assert options.enable_mem_pattern is False
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    # Two pool threads beside the caller's, counted from 1: CPU 6, then 4.
    assert options.get_session_config_entry("session.intra_op_thread_affinities") == "7;5"


def test_session_options_by_default_leave_the_other_core_alone(make_context: MakeContext) -> None:
    options = onnx_options.session_options(make_context(FLOATS, cpus=(1,)))
    assert options.intra_op_num_threads == 1
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_provider_options_reach_their_provider(make_context: MakeContext) -> None:
    config = FLOATS + parameter("providers", "CPUExecutionProvider")
    config += parameter("provider_options", '{"CPUExecutionProvider": {"arena": 1}}')
    assert onnx_options.execution_providers(make_context(config)) == [("CPUExecutionProvider", {"arena": "1"})]
    assert onnx_options.execution_providers(make_context(FLOATS)) == [("CPUExecutionProvider", {})]


def test_pinned_pool_threads_compute(tmp_path: Path, make_context: MakeContext) -> None:
    weights = write_mlp(tmp_path, 64)
    config = FLOATS + parameter("intra_op_thread_count", "2")
    executable = load(make_context(config, cpus=(0, 1)))
    x = np.ones((256, 64), np.float32)
    np.testing.assert_allclose(executable.execute({"x": x}, None)["y"], np.maximum(x @ weights, 0))
    executable.close()


def test_implicit_state_is_an_output_and_a_control_an_input(tmp_path: Path, make_context: MakeContext) -> None:
    nodes = [helper.make_node("Add", ["x", "s"], ["t"]), helper.make_node("Mul", ["t", "ready"], ["y"])]
    inputs = dict.fromkeys(("x", "s", "ready"), TensorProto.FLOAT)
    write(tmp_path / "model.onnx", nodes, inputs, dict.fromkeys(("y", "t"), TensorProto.FLOAT))
    sequences = """
    sequence_batching {
      control_input { name: "ready" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }
      state { input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [ 1 ] }
    }
    """
    executable = load(make_context(FLOATS + sequences))
    inputs_of_batch = {name: np.array([[2.0]], np.float32) for name in ("x", "s", "ready")}
    results = executable.execute(inputs_of_batch, None)
    assert {name: array.item() for name, array in results.items()} == {"y": 8.0, "t": 4.0}


class PublicSession:
    """A session of an onnxruntime without the methods below the public ones."""

    def __init__(self, session: Any) -> None:
        self.run = session.run
        self.run_with_iobinding = session.run_with_iobinding


@pytest.mark.parametrize("is_public", [False, True])
def test_runs_are_the_same_with_and_without_the_methods_below_the_public_ones(tmp_path: Path, is_public: bool) -> None:
    weights = write_mlp(tmp_path)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    used = PublicSession(session) if is_public else session
    x = np.ones((1, 4), np.float32)
    expected = np.maximum(x @ weights, 0)
    assert np.array_equal(session_calls.plain_run(used)(["y"], {"x": x})[0], expected)
    y = np.zeros_like(expected)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(y))
    session_calls.bound_run(used, binding)()
    assert np.array_equal(y, expected)
