"""The models every server in the bench serves, written from a seed so that all of them compute the same thing.

Our worker and, through Triton's python backend, Triton serve the same onnx files. This module depends on no server's
package.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx

INPUT = "INPUT0"
OUTPUT = "OUTPUT0"
MAX_BATCH = 32
IDENTITY_WIDTH = 64
IDENTITY_MODELS = ("identity", "identity_1mb")
# [N, 64] under dynamic batching: Triton's python backend pays its hop between processes once per batch then,
# which doubled its requests/s at 32 in flight. A comparison that left this out would flatter us.
IDENTITY_BATCHED = "identity_batched"


@dataclass(frozen=True)
class Perceptron:
    """A multilayer perceptron: float32 [N, width] → [N, width] through hidden Gemm+Relu layers."""

    name: str
    width: int
    hidden: tuple[int, ...]
    seed: int


# Hidden sizes were chosen by measuring onnxruntime at batch 1 with one intra-op thread on a 2-core Neoverse
# machine: about 20 µs (dispatch dominates) and about 1.6 ms (7 million weights, memory-bound).
MLP_SMALL = Perceptron("mlp_small", width=64, hidden=(128, 128), seed=20)
MLP_LARGE = Perceptron("mlp_large", width=512, hidden=(1632, 1632, 1632), seed=1600)
PERCEPTRONS = (MLP_SMALL, MLP_LARGE)


def build(perceptron: Perceptron) -> onnx.ModelProto:
    """The model as an onnx message; the same bytes for the same seed."""
    # Here, since load generators import this module for its names, on machines without onnx.
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(perceptron.seed)
    sizes = (perceptron.width, *perceptron.hidden, perceptron.width)
    nodes, weights = [], []
    current = INPUT
    for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        # He's scale keeps activations of order one through the layers: denormals would slow the CPU down.
        weight = generator.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)
        bias = generator.standard_normal(fan_out) * 0.1
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"weight{layer}"))
        weights.append(numpy_helper.from_array(bias.astype(np.float32), f"bias{layer}"))
        last = layer == len(sizes) - 2
        product = OUTPUT if last else f"product{layer}"
        nodes.append(helper.make_node("Gemm", [current, f"weight{layer}", f"bias{layer}"], [product]))
        if not last:
            current = f"hidden{layer}"
            nodes.append(helper.make_node("Relu", [product], [current]))
    shape = ["N", perceptron.width]
    graph = helper.make_graph(
        nodes,
        perceptron.name,
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, shape)],
        weights,
    )
    # Opset and IR version are pinned low enough for every onnxruntime a peer may bring.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def write_onnx(directory: Path) -> dict[str, Path]:
    """Writes NAME.onnx for every perceptron; returns name → path. A file that is there already stays."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = {}
    for perceptron in PERCEPTRONS:
        path = directory / f"{perceptron.name}.onnx"
        if not path.exists():
            partial = path.with_suffix(".partial")
            partial.write_bytes(build(perceptron).SerializeToString(deterministic=True))
            partial.replace(path)
        paths[perceptron.name] = path
    return paths


def tensors(dims: str) -> str:
    """The input and output sections every bench model shares."""
    return (
        f'input [ {{ name: "{INPUT}" data_type: TYPE_FP32 dims: [ {dims} ] }} ]\n'
        f'output [ {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {dims} ] }} ]\n'
    )


def batching(queue_timeout_microseconds: int | None) -> str:
    """A dynamic_batching section; with a timeout, a request that waited longer in the queue is rejected."""
    if queue_timeout_microseconds is None:
        return "dynamic_batching { }\n"
    return (
        "dynamic_batching { default_queue_policy { timeout_action: REJECT "
        f"default_timeout_microseconds: {queue_timeout_microseconds} }} }}\n"
    )


def identity_configs(group: str) -> dict[str, str]:
    """config.pbtxt of every identity model; ours and Triton's differ in model.py alone."""
    configs = {
        name: f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n{tensors("-1")}{group}'
        for name in IDENTITY_MODELS
    }
    configs[IDENTITY_BATCHED] = (
        f'name: "{IDENTITY_BATCHED}"\nbackend: "python"\nmax_batch_size: {MAX_BATCH}\n'
        f"{tensors(str(IDENTITY_WIDTH))}{batching(None)}{group}"
    )
    return configs


def instance_group(count: int) -> str:
    """An instance_group section of CPU instances."""
    return f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]\n"


IDENTITY_SOURCE = '''"""Hands its input back: what is left of a request when the model costs nothing."""


class Model:
    def load(self, context):
        pass

    def infer(self, inputs):
        return {"OUTPUT0": inputs["INPUT0"]}
'''


def write_repository(
    directory: Path,
    onnx_files: Mapping[str, Path],
    *,
    intra_op_threads: int = 1,
    queue_timeout_microseconds: int | None = None,
) -> Path:
    """Writes the repository our own worker serves, in Triton's layout; returns the directory."""
    for name, config in identity_configs(instance_group(1)).items():
        version = directory / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version / "model.py").write_text(IDENTITY_SOURCE)
        (directory / name / "config.pbtxt").write_text(config)
    for perceptron in PERCEPTRONS:
        version = directory / perceptron.name / "1"
        version.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(onnx_files[perceptron.name], version / "model.onnx")
        (directory / perceptron.name / "config.pbtxt").write_text(
            f'name: "{perceptron.name}"\nbackend: "onnxruntime"\nmax_batch_size: {MAX_BATCH}\n'
            f"{tensors(str(perceptron.width))}{batching(queue_timeout_microseconds)}"
            f"{instance_group(1)}"
            f'parameters {{ key: "intra_op_thread_count" value: {{ string_value: "{intra_op_threads}" }} }}\n'
        )
    return directory
