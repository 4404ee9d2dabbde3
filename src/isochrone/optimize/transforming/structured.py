"""Structured pruning: removes the least important channels between two layers, so that both become smaller.

A *block* is a layer that makes channels (Gemm, MatMul, Conv), the operators that keep them apart (activations,
normalization, pooling), and the layers that consume them. Channels may go if nothing else sees them: no output of the
graph, no residual connection, no reshape. Without training afterwards; the error is measured like any other.
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
    #: Constants with one value per channel: name → axis of the channels.
    vectors: dict[str, int] = field(default_factory=dict)
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
        self.outputs = {each.name for each in model.graph.output}
        self.users: dict[str, list[Any]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)

    def is_own_weight(self, name: str) -> bool:
        """Whether a constant is an initializer that one node uses."""
        return name in self.tensors and len(self.users[name]) == 1

    def replace(self, name: str, array: Any) -> None:
        from onnx import numpy_helper

        self.arrays[name] = array
        self.tensors[name].CopyFrom(numpy_helper.from_array(array, name))


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
    block = _Block(producer, int(weight.shape[_output_axis(producer)]))
    bias = producer.input[2] if len(producer.input) > 2 else ""
    if bias:
        if graph.arrays[bias].shape != (block.channels,):
            return None
        block.vectors[bias] = 0
    is_convolution = producer.op_type == "Conv"
    #: Tensors with these channels → rows of a consumer's weights per channel; 0: as many as it has.
    reached = {producer.output[0]: 1}
    for node in graph.model.graph.node:
        if node is producer or not any(name in reached for name in node.input):
            continue
        if not _follow(graph, block, reached, node, is_convolution):
            return None
    return None if graph.outputs & reached.keys() else block


def _follow(graph: _Graph, block: _Block, reached: dict[str, int], node: Any, is_convolution: bool) -> bool:
    """Whether a node keeps the channels apart or consumes them; adds it to the block."""
    first = node.input[0]
    if node.op_type in _LAYERS:
        rows = reached.get(first)
        weight = graph.arrays.get(node.input[1])
        if rows is None or weight is None or not graph.is_own_weight(node.input[1]):
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
    rows = reached.get(first, 1)
    if node.op_type == "Flatten":
        if not is_convolution or _attribute(node, "axis", 1) != 1:
            return False
        rows = 0
    elif node.op_type == "BatchNormalization":
        names = list(node.input[1:])
        if first not in reached or not all(graph.is_own_weight(name) for name in names):
            return False
        block.vectors.update(dict.fromkeys(names, 0))
    elif node.op_type in _CHANNELWISE:
        for name in node.input:
            if name and name not in reached and not _is_channelwise_constant(graph, block, name, is_convolution):
                return False
    elif node.op_type not in _POOLS or first not in reached:
        return False
    reached[node.output[0]] = rows
    return len(node.output) == 1


def _is_channelwise_constant(graph: _Graph, block: _Block, name: str, is_convolution: bool) -> bool:
    array = graph.arrays.get(name)
    if array is None:
        return False
    if array.size == 1:
        return True
    # Counted from the end, as operators broadcast: [N, C, H, W] or [..., C].
    place = -3 if is_convolution else -1
    if array.size != block.channels or array.ndim < -place or array.shape[place] != block.channels:
        return False
    if not graph.is_own_weight(name):
        return False
    block.vectors[name] = array.ndim + place
    return True


def _importance(graph: _Graph, block: _Block) -> Any:
    """Of each channel: the norm of the weights that make it, times that of those that use it."""
    import numpy as np

    made = np.moveaxis(graph.arrays[block.producer.input[1]], _output_axis(block.producer), 0)
    score = np.linalg.norm(made.reshape(block.channels, -1), axis=1)
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
