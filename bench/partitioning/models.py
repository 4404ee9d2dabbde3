"""Three models with random weights whose features shrink on the way: a convolution net, a perceptron, an encoder.

Sized for 20 to 60 ms on the edge and 5 to 15 ms at the core: one thread without and with AVX-512.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx

from bench.profiling.models import Graph

_INPUT, _OUTPUT = "x", "y"
CLASSES = 10


def convolution() -> bytes:
    """From a picture of 3×192×192. (channels, stride) of each layer: the first ones are quick, and shrink the most."""
    graph, inside, current = Graph(11), 3, _INPUT
    layers = ((16, 2), (16, 2), (32, 2), (64, 2), (224, 1), (224, 1), (224, 1), (224, 1), (256, 2), (256, 1), (256, 1))
    for channels, stride in layers:
        kernel = graph.weight(channels, inside, 3, 3)
        current = graph.add("Relu", [graph.add("Conv", [current, kernel], pads=[1] * 4, strides=[stride] * 2)])
        inside = channels
    pooled = graph.add("Flatten", [graph.add("GlobalAveragePool", [current])])
    graph.add("MatMul", [pooled, graph.weight(inside, CLASSES)], _OUTPUT)
    return graph.model((3, 192, 192), (CLASSES,))


def perceptron() -> bytes:
    """The same for each of 160 points with 1024 features; then the largest of each feature."""
    graph, current = Graph(12), _INPUT
    widths = (1024, 128, 1024, 1024, 512, 512, 256, 128, 64, 16)
    for inside, outside in pairwise(widths):
        current = graph.add("Relu", [graph.add("MatMul", [current, graph.weight(inside, outside)])])
    highest = graph.add("ReduceMax", [current], axes=[1], keepdims=0)
    graph.add("MatMul", [highest, graph.weight(widths[-1], CLASSES)], _OUTPUT)
    return graph.model((160, widths[0]), (CLASSES,))


def encoder(tokens: int = 160, width: int = 256, heads: int = 4, layers: int = 6) -> bytes:
    """Attention and feed-forward; pairs of neighbours are averaged after every second layer, from the first on."""
    graph, current = Graph(13), _INPUT
    scale = graph.constant(np.float32((width // heads) ** -0.5))
    ones, zeros = graph.constant(np.ones(width, np.float32)), graph.constant(np.zeros(width, np.float32))

    def split(of: str, count: int, order: tuple[int, ...]) -> str:
        apart = graph.constant(np.array([0, count, heads, width // heads], np.int64))
        projected = graph.add("MatMul", [of, graph.weight(width, width)])
        return graph.add("Transpose", [graph.add("Reshape", [projected, apart])], perm=list(order))

    count = tokens
    for layer in range(layers):
        normed = graph.add("LayerNormalization", [current, ones, zeros])
        query, key = split(normed, count, (0, 2, 1, 3)), split(normed, count, (0, 2, 3, 1))
        value = split(normed, count, (0, 2, 1, 3))
        scores = graph.add("Softmax", [graph.add("Mul", [graph.add("MatMul", [query, key]), scale])], axis=-1)
        mixed = graph.add("Transpose", [graph.add("MatMul", [scores, value])], perm=[0, 2, 1, 3])
        mixed = graph.add("Reshape", [mixed, graph.constant(np.array([0, count, width], np.int64))])
        current = graph.add("Add", [current, graph.add("MatMul", [mixed, graph.weight(width, width)])])
        hidden = graph.add("LayerNormalization", [current, ones, zeros])
        hidden = graph.add("Relu", [graph.add("MatMul", [hidden, graph.weight(width, 4 * width)])])
        hidden = graph.add("MatMul", [hidden, graph.weight(4 * width, width)])
        current = graph.add("Add", [current, hidden])
        if layer % 2 == 0:
            pairs = graph.constant(np.array([0, count // 2, 2, width], np.int64))
            current = graph.add("ReduceMean", [graph.add("Reshape", [current, pairs])], axes=[2], keepdims=0)
            count //= 2
    mean = graph.add("ReduceMean", [current], axes=[1], keepdims=0)
    graph.add("MatMul", [mean, graph.weight(width, CLASSES)], _OUTPUT)
    return graph.model((tokens, width), (CLASSES,))


MODELS: dict[str, Callable[[], bytes]] = {"convolution": convolution, "perceptron": perceptron, "encoder": encoder}


def read(model: bytes) -> Any:
    return onnx.load_from_string(model)


def rows_of(model: Any, count: int, seed: int = 7) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        value.name: random.standard_normal(
            (count, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]))
        ).astype(np.float32)
        for value in model.graph.input
    }
