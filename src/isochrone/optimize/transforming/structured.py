"""Structured pruning: removes the least important channels between two layers, so that both become smaller.

A *block* is a layer that makes channels (Gemm, MatMul, Conv), the operators that keep them apart (activations,
normalization, pooling), and the layers that consume them. Channels may go if nothing else sees them: no output of the
graph or of a nested graph, no residual connection, no reshape but Flatten. Grouped convolutions and layers that share
weights stay whole. Without training afterwards; the error is measured like any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isochrone.optimize.transforming.facts import MachineFacts, ModelFacts
from isochrone.optimize.transforming.graphs import Batches

#: Operators that compute each channel from itself and constants.
_CHANNELWISE = frozenset(
    [
        "Relu",
        "LeakyRelu",
        "Sigmoid",
        "Tanh",
        "Gelu",
        "Clip",
        "HardSwish",
        "HardSigmoid",
        "Elu",
        "Softplus",
        "Erf",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Sqrt",
        "Identity",
        "Dropout",
    ]
)
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_LAYERS = frozenset({"Gemm", "MatMul", "Conv"})
#: Kernels of runtimes work on so many channels at once.
_MULTIPLE = 8
#: As of batch normalizations: a variance may be 0.
_SMALL = 1e-5


def structured_obstacle(model: ModelFacts, machine: MachineFacts) -> str:
    if model.is_quantized:
        return "the model is quantized already"
    return "" if model.has_float_weights else "it has no MatMul, Gemm or Conv with FP32 weights"


def structured_10(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    prune(source, target, 0.10)


def structured_25(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    prune(source, target, 0.25)


def structured_50(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    prune(source, target, 0.50)


@dataclass
class _Block:
    producer: Any
    channels: int
    is_convolution: bool
    axis: int
    """Of the channels in the producer's output, counted from the end, as operators broadcast."""
    #: Constants with one value per channel: name → axis of the channels.
    vectors: dict[str, int] = field(default_factory=dict)
    #: Of batch normalizations: scale and variance, by name.
    normalizations: list[tuple[str, str]] = field(default_factory=list)
    #: Consumers, each with the number of its weights' rows per channel: several behind a Flatten.
    consumers: list[tuple[Any, int]] = field(default_factory=list)


class _Graph:
    def __init__(self, model: Any) -> None:
        from onnx import numpy_helper

        self.model = model
        self.tensors = {each.name: each for each in model.graph.initializer}
        self.arrays = {name: numpy_helper.to_array(each) for name, each in self.tensors.items()}
        for node in model.graph.node:
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.name == "value":
                        self.arrays[node.output[0]] = numpy_helper.to_array(attribute.t)
        #: Initializers of old files are also inputs, which callers may give.
        self.inputs = {each.name for each in model.graph.input}
        self.outputs = {each.name for each in model.graph.output} | _names_of_nested_graphs(model.graph)
        self.users: dict[str, list[Any]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)

    def is_own_weight(self, name: str) -> bool:
        """Whether a constant is an initializer that one node uses."""
        seen = name in self.outputs or name in self.inputs
        return name in self.tensors and len(self.users[name]) == 1 and not seen

    def replace(self, name: str, array: Any) -> None:
        from onnx import numpy_helper

        self.arrays[name] = array
        self.tensors[name].CopyFrom(numpy_helper.from_array(array, name))


def _names_of_nested_graphs(graph: Any) -> set[str]:
    """Of all tensors that bodies of If, Loop and Scan use: some are of the graph around them."""
    bodies = [
        body
        for node in graph.node
        for attribute in node.attribute
        for body in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
    ]
    names: set[str] = set()
    for body in bodies:
        names.update(name for node in body.node for name in node.input)
        names.update(each.name for each in body.output)
        names |= _names_of_nested_graphs(body)
    return names


def prune(source: Path, target: Path, share: float) -> None:
    """Removes about ``share`` of the channels of every block."""
    import numpy as np
    import onnx

    graph = _Graph(onnx.load(str(source)))
    removed = 0
    for block in list(_blocks(graph)):
        kept = max(_MULTIPLE, math.ceil(block.channels * (1 - share) / _MULTIPLE) * _MULTIPLE)
        if kept >= block.channels:
            continue
        order = np.argsort(_importance(graph, block), kind="stable")
        _keep(graph, block, np.sort(order[block.channels - kept :]))
        removed += block.channels - kept
    if not removed:
        raise ValueError("no channels can be removed: none are between two layers alone, or there are too few")
    del graph.model.graph.value_info[:]  # of the old shapes
    onnx.save(graph.model, str(target))


def _blocks(graph: _Graph) -> Iterator[_Block]:
    for node in graph.model.graph.node:
        if node.op_type in _LAYERS:
            block = _block_of(graph, node)
            if block is not None and block.consumers:
                yield block


def _block_of(graph: _Graph, producer: Any) -> _Block | None:
    weight = graph.arrays.get(producer.input[1]) if len(producer.input) > 1 else None
    if weight is None or not all(graph.is_own_weight(name) for name in producer.input[1:]):
        return None
    if _attribute(producer, "transA", 0) or _attribute(producer, "group", 1) != 1:
        return None
    if producer.op_type == "MatMul" and weight.ndim != 2:
        return None
    is_convolution = producer.op_type == "Conv"
    axis = -(weight.ndim - 1) if is_convolution else -1
    block = _Block(producer, int(weight.shape[_output_axis(producer)]), is_convolution, axis)
    bias = producer.input[2] if len(producer.input) > 2 else ""
    if bias:
        if graph.arrays[bias].shape != (block.channels,):
            return None
        block.vectors[bias] = 0
    #: Tensors with these channels → rows of a consumer's weights per channel; 0: flat, so as many as it has.
    reached = {producer.output[0]: 1}
    for node in graph.model.graph.node:
        if node is producer or not any(name in reached for name in node.input):
            continue
        if not _follow(graph, block, reached, node):
            return None
    return None if graph.outputs & reached.keys() else block


def _follow(graph: _Graph, block: _Block, reached: dict[str, int], node: Any) -> bool:
    """Whether a node keeps the channels apart or consumes them; adds it to the block."""
    if node.op_type in _LAYERS:
        return _consume(graph, block, reached, node)
    rows = {reached[name] for name in node.input if name in reached}
    if len(rows) != 1 or len(node.output) != 1:
        return False  # flat beside not flat, or a second output
    is_flat = rows == {0}
    if node.op_type in _CHANNELWISE:
        if not all(
            not name or name in reached or _is_channelwise_constant(graph, block, name, is_flat) for name in node.input
        ):
            return False
    elif node.input[0] not in reached:
        return False
    elif node.op_type == "Flatten":
        if not block.is_convolution or _attribute(node, "axis", 1) != 1:
            return False
        rows = {0}
    elif node.op_type == "BatchNormalization":
        # Its channels are axis 1, which is not the last one behind every MatMul.
        if block.producer.op_type == "MatMul" or not _normalizes(graph, block, node):
            return False
    elif node.op_type not in _POOLS or not block.is_convolution or is_flat:
        return False
    reached[node.output[0]] = rows.pop()
    return True


def _consume(graph: _Graph, block: _Block, reached: dict[str, int], node: Any) -> bool:
    rows = reached.get(node.input[0])
    weight = graph.arrays.get(node.input[1])
    if rows is None or weight is None or not graph.is_own_weight(node.input[1]):
        return False
    # A MatMul multiplies the last axis, which is the width of an image.
    if (node.op_type == "Conv") is not (block.is_convolution and rows != 0):
        return False
    if any(name in reached for name in node.input[1:]) or _attribute(node, "transA", 0):
        return False
    if _attribute(node, "group", 1) != 1 or (node.op_type == "MatMul" and weight.ndim != 2):
        return False
    inputs = int(weight.shape[_input_axis(node)])
    if inputs % block.channels or (rows and inputs != block.channels * rows):
        return False
    block.consumers.append((node, inputs // block.channels))
    return True


def _normalizes(graph: _Graph, block: _Block, node: Any) -> bool:
    """Whether a batch normalization has one value per channel, and not per value behind a Flatten."""
    names = list(node.input[1:])
    if not all(graph.is_own_weight(name) and graph.arrays[name].shape == (block.channels,) for name in names):
        return False
    block.vectors.update(dict.fromkeys(names, 0))
    block.normalizations.append((names[0], names[3]))
    return True


def _is_channelwise_constant(graph: _Graph, block: _Block, name: str, is_flat: bool) -> bool:
    array = graph.arrays.get(name)
    if array is None:
        return False
    if array.size == 1:
        return True
    if is_flat or array.size != block.channels or array.ndim < -block.axis:
        return False
    if array.shape[block.axis] != block.channels or not graph.is_own_weight(name):
        return False
    block.vectors[name] = array.ndim + block.axis
    return True


def _importance(graph: _Graph, block: _Block) -> Any:
    """Of each channel: the norm of the weights that make it, times that of those that use it.

    Between them, batch normalizations multiply it.
    """
    import numpy as np

    made = np.moveaxis(graph.arrays[block.producer.input[1]], _output_axis(block.producer), 0)
    score = np.linalg.norm(made.reshape(block.channels, -1), axis=1)
    for scale, variance in block.normalizations:
        score = score * np.abs(graph.arrays[scale]) / np.sqrt(graph.arrays[variance] + _SMALL)
    used = np.zeros(block.channels)
    for node, rows in block.consumers:
        weight = np.moveaxis(graph.arrays[node.input[1]], _input_axis(node), 0)
        used += np.square(weight.reshape(block.channels, rows, -1)).sum(axis=(1, 2))
    return score * np.sqrt(used)


def _keep(graph: _Graph, block: _Block, kept: Any) -> None:
    import numpy as np

    made = block.producer.input[1]
    graph.replace(made, np.take(graph.arrays[made], kept, axis=_output_axis(block.producer)))
    for name, axis in block.vectors.items():
        graph.replace(name, np.take(graph.arrays[name], kept, axis=axis))
    for node, rows in block.consumers:
        places = (kept[:, None] * rows + np.arange(rows)).reshape(-1)
        used = node.input[1]
        graph.replace(used, np.take(graph.arrays[used], places, axis=_input_axis(node)))


def _output_axis(node: Any) -> int:
    if node.op_type == "Conv":
        return 0
    return 0 if node.op_type == "Gemm" and _attribute(node, "transB", 0) else 1


def _input_axis(node: Any) -> int:
    return 1 - _output_axis(node)


def _attribute(node: Any, name: str, default: int) -> int:
    return next((int(each.i) for each in node.attribute if each.name == name), default)
