"""A small network and data for it, for tests of the optimizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUTS, HIDDEN, CLASSES = 16, 32, 4


def write_mlp(path: Path, *, inputs: int = INPUTS, hidden: int = HIDDEN, opset: int = 17) -> Path:
    """x → Gemm → Relu → MatMul → Add → y, with weights by a seed."""
    random = np.random.default_rng(7)
    arrays = {
        "w1": random.normal(size=(hidden, inputs)),
        "b1": random.normal(size=hidden),
        "w2": random.normal(size=(hidden, CLASSES)),
        "b2": random.normal(size=CLASSES),
    }
    # Half of the hidden units do next to nothing: structured pruning removes those.
    arrays["w1"][::2] *= 1e-4
    arrays["b1"][::2] *= 1e-4
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w2"], ["m"]),
            helper.make_node("Add", ["m", "b2"], ["y"]),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


def write_data(path: Path, rows: int = 64, inputs: int = INPUTS) -> Path:
    random = np.random.default_rng(3)
    np.savez(path, x=random.normal(size=(rows, inputs)).astype(np.float32))
    return path
