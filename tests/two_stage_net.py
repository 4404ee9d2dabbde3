"""Small ONNX models for tests of partitioning, made by torch-free code."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

OPSET = 17


def model_of(
    nodes: list[Any],
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    weights: dict[str, Any],
    opset: int = OPSET,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def residual_net(
    channels: int = 8, blocks: int = 3, size: int = 16, rows: Any = "batch", opset: int = OPSET
) -> ModelProto:
    """Convolutions with residual blocks, a pooling and a head: the features shrink from block to block."""
    random = np.random.default_rng(3)
    nodes, weights = [], {}

    def convolution(source: str, target: str, inside: int, outside: int, stride: int) -> None:
        weights[f"{target}.w"] = (random.standard_normal((outside, inside, 3, 3)) / 3 / inside**0.5).astype(np.float32)
        nodes.append(helper.make_node("Conv", [source, f"{target}.w"], [target], pads=[1] * 4, strides=[stride] * 2))

    convolution("image", "stem", 3, channels, 1)
    nodes.append(helper.make_node("Relu", ["stem"], ["b0"]))
    for block in range(blocks):
        convolution(f"b{block}", f"c{block}", channels, channels, 1)
        nodes.append(helper.make_node("Relu", [f"c{block}"], [f"r{block}"]))
        nodes.append(helper.make_node("Add", [f"r{block}", f"b{block}"], [f"s{block}"]))
        convolution(f"s{block}", f"b{block + 1}", channels, channels, 2)
    nodes.append(helper.make_node("GlobalAveragePool", [f"b{blocks}"], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    weights["head"] = random.standard_normal((channels, 10)).astype(np.float32)
    nodes.append(helper.make_node("MatMul", ["flat", "head"], ["scores"]))
    return model_of(nodes, {"image": [rows, 3, size, size]}, {"scores": [rows, 10]}, weights, opset)


def late_input_net() -> ModelProto:
    """An input that only the last node reads, a constant node, and a branch with a body."""
    then = helper.make_graph(
        [helper.make_node("Add", ["b", "one"], ["t"])], "then", [], [helper.make_tensor_value_info("t", 1, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Sub", ["b", "one"], ["e"])], "else", [], [helper.make_tensor_value_info("e", 1, None)]
    )
    nodes = [
        helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.ones(1, np.float32))),
        helper.make_node("Add", ["x", "one"], ["a"]),
        helper.make_node("Mul", ["a", "a"], ["b"]),
        helper.make_node("ReduceSum", ["b"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["condition"]),
        helper.make_node("If", ["condition"], ["c"], then_branch=then, else_branch=other),
        helper.make_node("Mul", ["c", "late"], ["y"]),
    ]
    weights = {"zero": np.float32(0)}
    return model_of(nodes, {"x": ["batch", 4], "late": ["batch", 4]}, {"y": ["batch", 4]}, weights)
