"""onnx models on GPUs: providers and options by the configuration, and the reasons of those that cannot be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from config_text import parameter
from load_contexts import MakeContext
from onnx import TensorProto, helper

from isochrone.errors import ConfigError
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.onnx import cuda
from isochrone.worker.backends.onnx.backend import GraphExecutable, OnnxExecutable, keep, load
from isochrone.worker.backends.onnx.options import execution_providers

CPU = ("CPUExecutionProvider", {})
TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "z" data_type: TYPE_FP32 dims: [ 4 ] }
"""
GRAPHS = "optimization { cuda { graphs: true } }\n"


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """An onnxruntime with the providers of the package for GPUs."""
    names = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)


def on_gpu(make_context: MakeContext, config: str, gpu: int | None = 0) -> LoadContext:
    return replace(make_context(TENSORS + config), gpu=gpu)


def accelerator(name: str, **options: str) -> str:
    given = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in options.items())
    return f'optimization {{ execution_accelerators {{ gpu_execution_accelerator {{ name: "{name}" {given} }} }} }}\n'


@pytest.mark.usefixtures("with_cuda")
@pytest.mark.parametrize(
    ("config", "gpu", "expected"),
    [
        ("", None, [CPU]),
        ("", 3, [("CUDAExecutionProvider", {"device_id": "3"}), CPU]),
        (
            accelerator("cuda", use_ep_level_unified_stream="1", device_id="7"),
            1,
            [("CUDAExecutionProvider", {"use_ep_level_unified_stream": "1", "device_id": "1"}), CPU],
        ),
        (
            accelerator("tensorrt", precision_mode="FP16"),
            2,
            [
                ("TensorrtExecutionProvider", {"trt_fp16_enable": "1", "device_id": "2"}),
                ("CUDAExecutionProvider", {"device_id": "2"}),
                CPU,
            ],
        ),
        (
            parameter("cudnn_conv_algo_search", "1")
            + parameter("gpu_mem_limit", "4294967200")
            + parameter("arena_extend_strategy", "1")
            + parameter("do_copy_in_default_stream", "0"),
            0,
            [
                (
                    "CUDAExecutionProvider",
                    {
                        "cudnn_conv_algo_search": "HEURISTIC",
                        "arena_extend_strategy": "kSameAsRequested",
                        "do_copy_in_default_stream": "0",
                        "gpu_mem_limit": "4294967200",
                        "device_id": "0",
                    },
                ),
                CPU,
            ],
        ),
        # The accelerator's own options win over the older parameters.
        (
            parameter("gpu_mem_limit", "1000") + accelerator("cuda", gpu_mem_limit="2000"),
            0,
            [("CUDAExecutionProvider", {"gpu_mem_limit": "2000", "device_id": "0"}), CPU],
        ),
        # What names providers itself stays as it is.
        (
            parameter("providers", "CUDAExecutionProvider") + parameter("gpu_mem_limit", "1000") + GRAPHS,
            0,
            [("CUDAExecutionProvider", {}), CPU],
        ),
        (
            parameter("provider_options", '{"CUDAExecutionProvider": {"cudnn_conv_use_max_workspace": 0}}'),
            1,
            [("CUDAExecutionProvider", {"device_id": "1", "cudnn_conv_use_max_workspace": "0"}), CPU],
        ),
        (GRAPHS, 0, [("CUDAExecutionProvider", {"enable_cuda_graph": "1", "device_id": "0"}), CPU]),
        (GRAPHS, None, [CPU]),
    ],
)
def test_providers(make_context: MakeContext, config: str, gpu: int | None, expected: Any) -> None:
    assert execution_providers(on_gpu(make_context, config, gpu)) == expected


@pytest.mark.usefixtures("with_cuda")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (parameter("cudnn_conv_algo_search", "3"), r'"cudnn_conv_algo_search".*one of 0, 1, 2.*, given \'3\''),
        (parameter("gpu_mem_limit", "much"), r'"gpu_mem_limit".*an integer >= 1, given \'much\''),
    ],
)
def test_bad_parameters(make_context: MakeContext, config: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        execution_providers(on_gpu(make_context, config))


@pytest.mark.usefixtures("with_cuda")
@pytest.mark.parametrize(
    "config",
    [
        TENSORS + "max_batch_size: 8 ",
        TENSORS.replace("[ 4 ]", "[ -1 ]", 1),
        TENSORS.replace("TYPE_FP32", "TYPE_STRING", 1),
        TENSORS.replace("dims: [ 4 ]", "dims: [ 4 ] optional: true", 1),
    ],
)
def test_graphs_need_one_shape_of_run(make_context: MakeContext, config: str) -> None:
    context = replace(make_context(config + GRAPHS), gpu=0)
    assert execution_providers(context) == [("CUDAExecutionProvider", {"device_id": "0"}), CPU]


@pytest.mark.usefixtures("with_cuda")
def test_a_batch_of_one_is_one_shape(make_context: MakeContext) -> None:
    context = on_gpu(make_context, "max_batch_size: 1 " + GRAPHS)
    assert dict(execution_providers(context))["CUDAExecutionProvider"]["enable_cuda_graph"] == "1"


def write(directory: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])]
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xyz"}
    graph = helper.make_graph(nodes, "graph", [infos["x"]], [infos["y"], infos["z"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(directory / "model.onnx"))


def test_an_onnxruntime_without_cuda_says_why(
    tmp_path: Path, make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    asked = []

    def explained(device: int, runtime: str) -> str:
        asked.append((device, runtime))
        return "there is no NVIDIA driver; install it"

    monkeypatch.setattr(cuda, "explain_missing_gpu", explained)
    message = r"instance_group\.kind: expected .*but there is no NVIDIA driver; install it\. To run .*, given GPU 2$"
    with pytest.raises(ConfigError, match=message):
        load(on_gpu(make_context, "", 2))
    assert asked == [(2, "onnxruntime")]


def test_a_provider_that_was_replaced_by_the_cpu_fails_the_load(make_context: MakeContext) -> None:
    session = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    with pytest.raises(ConfigError, match=r"CUDAExecutionProvider on GPU 1, which onnxruntime could not start"):
        cuda.check_provider(on_gpu(make_context, "", 1), session)
    for context in (
        on_gpu(make_context, "", None),
        on_gpu(make_context, parameter("providers", "OtherExecutionProvider")),
    ):
        cuda.check_provider(context, session)


def test_no_session_on_a_gpu_is_kept_for_a_fork(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path)
    assert keep(on_gpu(make_context, "")) is False


def test_buffers_of_a_graph_keep_their_addresses(tmp_path: Path, make_context: MakeContext) -> None:
    """On the host, where onnxruntime binds buffers in the same way."""
    write(tmp_path)
    context = on_gpu(make_context, "", None)
    plain = load(context)
    assert isinstance(plain, OnnxExecutable)
    executable = GraphExecutable(context, plain._session, "cpu")
    kept = []
    for step in range(3):
        x = np.arange(4, dtype=np.float32) - step
        kept.append((x, executable.execute({"x": x}, None)))
    for x, outputs in kept:
        np.testing.assert_array_equal(outputs["y"], -x)
        np.testing.assert_array_equal(outputs["z"], np.abs(x))
    assert list(executable.execute({"x": np.ones(4, np.float32)}, ("z",))) == ["z"]
    executable.close()
