"""Magnitude pruning: the smallest weights of each matrix or kernel become zero. Shapes and file size stay."""

from __future__ import annotations

from pathlib import Path

from isochrone.optimize.transforming.facts import MachineFacts, ModelFacts
from isochrone.optimize.transforming.graphs import Batches

_SHARE = 0.5
#: Smaller ones hold too little to be worth an error.
_LEAST_ELEMENTS = 1024


def magnitude_obstacle(model: ModelFacts, machine: MachineFacts) -> str:
    if model.is_quantized:
        return "the model is quantized already"
    return "" if model.has_float_weights else "it has no MatMul, Gemm or Conv with FP32 weights"


def magnitude(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    import numpy as np
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(source))
    weights = {node.input[1] for node in model.graph.node if node.op_type in ("Gemm", "MatMul", "Conv")}
    zeroed = 0
    for tensor in model.graph.initializer:
        if tensor.name not in weights or tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        array = numpy_helper.to_array(tensor).copy()
        if array.ndim < 2 or array.size < _LEAST_ELEMENTS:
            continue
        threshold = np.quantile(np.abs(array), _SHARE)
        small = (np.abs(array) < threshold) & (array != 0)
        zeroed += int(np.count_nonzero(small))
        array[small] = 0.0
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    if not zeroed:
        raise ValueError(f"no weight became zero: none of at least {_LEAST_ELEMENTS} elements has smaller ones")
    onnx.save(model, str(target))
