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


def flat_output_net() -> ModelProto:
    """Tensors of one number for each row, inside and as the output."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Exp", ["mean"], ["y"]),
    ]
    return model_of(nodes, {"x": ["batch", 4]}, {"y": ["batch"]}, {})


def shape_net(rows: Any = "batch") -> ModelProto:
    """Some cuts send a shape, which is no row, and with which zeros make no sense."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["shape"]),
        helper.make_node("Slice", ["shape", "one", "two"], ["width"]),
        helper.make_node("Concat", ["one", "width"], ["size"], axis=0),
        helper.make_node("ConstantOfShape", ["size"], ["mask"]),
        helper.make_node("Add", ["a", "mask"], ["b"]),
        helper.make_node("Exp", ["b"], ["y"]),
    ]
    weights = {"one": np.array([1], np.int64), "two": np.array([2], np.int64)}
    return model_of(nodes, {"x": [rows, 4]}, {"y": [rows, 4]}, weights)


def sequence_net() -> ModelProto:
    """Rows of any length. One cut sends all positions of all rows in the first dimension."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "flat"], ["positions"]),
        helper.make_node("MatMul", ["positions", "weight"], ["mixed"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["mixed", "shape"], ["b"]),
        helper.make_node("Exp", ["b"], ["c"]),
        helper.make_node("Neg", ["c"], ["y"]),
    ]
    weights = {"flat": np.array([-1, 4], np.int64), "weight": np.eye(4, dtype=np.float32) / 2}
    return model_of(nodes, {"x": ["batch", "length", 4]}, {"y": ["batch", "length", 4]}, weights)


def list_net(as_output: bool = False) -> ModelProto:
    """A sequence of tensors inside, or as the output."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("SplitToSequence", ["a"], ["parts"], axis=1),
        helper.make_node("ConcatFromSequence", ["parts"], ["b"], axis=1),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    if not as_output:
        return model_of(nodes, {"x": ["batch", 4]}, {"y": ["batch", 4]}, {})
    model = model_of(nodes[:2], {"x": ["batch", 4]}, {}, {})
    model.graph.output.append(helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None))
    return model


def text_net() -> ModelProto:
    nodes = [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Identity", ["a"], ["y"])]
    model = model_of(nodes, {"x": ["batch", 2]}, {"y": ["batch", 2]}, {})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.STRING
    return model


def scaled_net() -> ModelProto:
    """One input has rows, the other has none."""
    nodes = [helper.make_node("Mul", ["x", "factor"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    return model_of(nodes, {"x": ["batch", 4], "factor": [1]}, {"y": ["batch", 4]}, {})
