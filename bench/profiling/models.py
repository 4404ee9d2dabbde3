"""Three onnx models from a seed: a perceptron, a small convolution net, a small transformer encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MAX_BATCH = 128
OPSET, IR_VERSION = 17, 8
_INPUT, _OUTPUT = "x", "y"


@dataclass
class Graph:
    """Nodes and weights of one model."""

    seed: int
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def weight(self, *shape: int) -> str:
        # He's scale keeps activations of order one: denormals would slow the CPU down.
        fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        generator = np.random.default_rng((self.seed, len(self.weights)))
        values = generator.standard_normal(shape) * np.sqrt(2 / fan_in)
        return self.constant(values.astype(np.float32))

    def constant(self, values: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def add(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        output = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def model(self, in_shape: Sequence[int], out_shape: Sequence[int]) -> bytes:
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info(_INPUT, TensorProto.FLOAT, ["N", *in_shape])],
            [helper.make_tensor_value_info(_OUTPUT, TensorProto.FLOAT, ["N", *out_shape])],
            self.weights,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(made)
        return bytes(made.SerializeToString(deterministic=True))


def perceptron() -> tuple[bytes, tuple[int, ...]]:
    graph, widths = Graph(1), (256, 1024, 1024, 64)
    current = _INPUT
    for layer in range(len(widths) - 1):
        current = graph.add("MatMul", [current, graph.weight(widths[layer], widths[layer + 1])])
        last = layer == len(widths) - 2
        current = graph.add("Relu", [current], _OUTPUT if last else "")
    return graph.model((widths[0],), (widths[-1],)), (widths[0],)


def convolution() -> tuple[bytes, tuple[int, ...]]:
    graph, shape = Graph(2), (3, 32, 32)
    current = _INPUT
    for channels_in, channels_out, stride in ((3, 16, 1), (16, 32, 2), (32, 64, 2)):
        kernel = graph.weight(channels_out, channels_in, 3, 3)
        current = graph.add("Conv", [current, kernel], pads=[1, 1, 1, 1], strides=[stride, stride])
        current = graph.add("Relu", [current])
    current = graph.add("GlobalAveragePool", [current])
    current = graph.add("Flatten", [current])
    graph.add("MatMul", [current, graph.weight(64, 10)], _OUTPUT)
    return graph.model(shape, (10,)), shape


def encoder(tokens: int = 32, width: int = 128, heads: int = 4) -> tuple[bytes, tuple[int, ...]]:
    """Two layers of attention and feed-forward, without masks."""
    graph, shape = Graph(3), (tokens, width)
    apart = graph.constant(np.array([0, tokens, heads, width // heads], np.int64))
    together = graph.constant(np.array([0, tokens, width], np.int64))
    scale = graph.constant(np.float32((width // heads) ** -0.5))
    ones, zeros = graph.constant(np.ones(width, np.float32)), graph.constant(np.zeros(width, np.float32))

    def split(of: str, order: Sequence[int]) -> str:
        projected = graph.add("MatMul", [of, graph.weight(width, width)])
        return graph.add("Transpose", [graph.add("Reshape", [projected, apart])], perm=list(order))

    current = _INPUT
    for layer in range(2):
        normed = graph.add("LayerNormalization", [current, ones, zeros])
        query, key, value = split(normed, (0, 2, 1, 3)), split(normed, (0, 2, 3, 1)), split(normed, (0, 2, 1, 3))
        scores = graph.add("Mul", [graph.add("MatMul", [query, key]), scale])
        mixed = graph.add("MatMul", [graph.add("Softmax", [scores], axis=-1), value])
        mixed = graph.add("Reshape", [graph.add("Transpose", [mixed], perm=[0, 2, 1, 3]), together])
        current = graph.add("Add", [current, graph.add("MatMul", [mixed, graph.weight(width, width)])])
        hidden = graph.add("LayerNormalization", [current, ones, zeros])
        hidden = graph.add("Relu", [graph.add("MatMul", [hidden, graph.weight(width, 4 * width)])])
        hidden = graph.add("MatMul", [hidden, graph.weight(4 * width, width)])
        current = graph.add("Add", [current, hidden], _OUTPUT if layer == 1 else "")
    return graph.model(shape, shape), shape


MODELS = {"perceptron": perceptron, "convolution": convolution, "encoder": encoder}


def write_repository(directory: Path) -> Path:
    """All three, in Triton's layout, with one instance each; dims are completed from the files."""
    for name, make in MODELS.items():
        data, _ = make()
        version = directory / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(data)
        text = f'name: "{name}"\nplatform: "onnxruntime_onnx"\nmax_batch_size: {MAX_BATCH}\n'
        (directory / name / "config.pbtxt").write_text(text)
    return directory
