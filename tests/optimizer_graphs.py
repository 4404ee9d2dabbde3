"""Graphs for tests of transformations, made by hand: a transformer encoder, and convolution nets of any operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LENGTH, WIDTH, HEADS = 8, 32, 4


class GraphMaker:
    """Collects nodes and their constants, by a seed."""

    def __init__(self, seed: int = 11) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.arrays: dict[str, Any] = {}

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=f"node_{output}", **attributes))
        return output

    def constant(self, name: str, array: Any) -> str:
        given = np.asarray(array)
        self.arrays[name] = given if given.dtype == np.int64 else given.astype(np.float32)
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.constant(name, self.random.normal(size=shape) / np.sqrt(np.prod(shape[1:]) or 1))

    def convolution(self, data: str, name: str, inputs: int, outputs: int, group: int = 1) -> str:
        """Of 3 × 3, which keeps height and width."""
        kernel = self.weight(f"{name}.w", outputs, inputs // group, 3, 3)
        bias = self.constant(f"{name}.b", self.random.normal(size=outputs))
        return self.node("Conv", [data, kernel, bias], name, pads=[1, 1, 1, 1], group=group)

    def normalization(self, data: str, name: str, channels: int) -> str:
        names = [
            self.constant(f"{name}.scale", self.random.uniform(0.5, 1.5, channels)),
            self.constant(f"{name}.bias", self.random.normal(size=channels)),
            self.constant(f"{name}.mean", self.random.normal(size=channels)),
            self.constant(f"{name}.variance", self.random.uniform(0.5, 1.5, channels)),
        ]
        return self.node("BatchNormalization", [data, *names], name)

    def write(self, path: Path, inputs: list[int], outputs: dict[str, list[int]]) -> Path:
        """``inputs`` of x and ``outputs`` are without the batch."""
        graph = helper.make_graph(
            self.nodes,
            "made",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *inputs])],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *dims])
                for name, dims in outputs.items()
            ],
            [numpy_helper.from_array(array, name) for name, array in self.arrays.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, str(path))
        return path


def write_encoder(path: Path, layers: int = 2) -> Path:
    """x → blocks of attention and a wide layer with GELU, each normalized before it and with its residual → y."""
    make = GraphMaker()
    split = make.constant("split", np.array([0, LENGTH, HEADS, WIDTH // HEADS], np.int64))
    joined = make.constant("joined", np.array([0, LENGTH, WIDTH], np.int64))
    scale = make.constant("scale", np.float32((WIDTH // HEADS) ** 0.5))
    root, one, half = make.constant("root", 2**0.5), make.constant("one", 1.0), make.constant("half", 0.5)

    def linear(data: str, name: str, inputs: int, outputs: int) -> str:
        product = make.node("MatMul", [data, make.weight(f"{name}.w", inputs, outputs)], f"{name}.product")
        return make.node("Add", [make.constant(f"{name}.b", make.random.normal(size=outputs)), product], name)

    def normal(data: str, name: str) -> str:
        names = [make.weight(f"{name}.scale", WIDTH), make.weight(f"{name}.bias", WIDTH)]
        return make.node("LayerNormalization", [data, *names], name, axis=-1, epsilon=1e-5)

    def heads(data: str, name: str, order: list[int]) -> str:
        shaped = make.node("Reshape", [linear(data, name, WIDTH, WIDTH), split], f"{name}.split")
        return make.node("Transpose", [shaped], f"{name}.heads", perm=order)

    states = "x"
    for number in range(layers):
        at = f"l{number}."
        before = normal(states, f"{at}before")
        query = heads(before, f"{at}query", [0, 2, 1, 3])
        key = heads(before, f"{at}key", [0, 2, 3, 1])
        value = heads(before, f"{at}value", [0, 2, 1, 3])
        scores = make.node("Div", [make.node("MatMul", [query, key], f"{at}scores"), scale], f"{at}scaled")
        shares = make.node("Softmax", [scores], f"{at}shares", axis=-1)
        seen = make.node("MatMul", [shares, value], f"{at}seen")
        merged = make.node("Transpose", [seen], f"{at}merged", perm=[0, 2, 1, 3])
        flat = make.node("Reshape", [merged, joined], f"{at}flat")
        states = make.node("Add", [states, linear(flat, f"{at}out", WIDTH, WIDTH)], f"{at}attended")
        wide = linear(normal(states, f"{at}between"), f"{at}wide", WIDTH, 4 * WIDTH)
        error = make.node("Erf", [make.node("Div", [wide, root], f"{at}divided")], f"{at}erf")
        raised = make.node("Mul", [wide, make.node("Add", [error, one], f"{at}raised")], f"{at}product")
        gelu = make.node("Mul", [raised, half], f"{at}gelu")
        states = make.node("Add", [states, linear(gelu, f"{at}narrow", 4 * WIDTH, WIDTH)], f"{at}states")
    normal(states, "y")
    return make.write(path, [LENGTH, WIDTH], {"y": [LENGTH, WIDTH]})
