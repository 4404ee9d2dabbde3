"""FP16 and weights in few bits, by onnxruntime's converters. Inputs and outputs keep their types."""

from __future__ import annotations

import warnings
from pathlib import Path

from isochrone.optimize.transforming.facts import LARGE_WEIGHT, MachineFacts, ModelFacts
from isochrone.optimize.transforming.graphs import Batches
from isochrone.optimize.transforming.quiet_logs import quiet_logs

#: Weights that share a scale.
_BLOCK = 32
#: MatMulNBits: activations in INT8, which is what makes it faster than FP32 on a CPU.
_INT8_ACTIVATIONS = 4


def fp16_obstacle(model: ModelFacts, machine: MachineFacts) -> str:
    if model.is_quantized:
        return "the model is quantized already"
    if not machine.computes_fp16:
        return "this CPU does not compute in FP16 (asimdhp, avx512_fp16), and no GPU was asked for"
    if not model.has_float_weights:
        return "it has no MatMul, Gemm or Conv with FP32 weights"
    return ""


def fp16(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that FP16 cannot hold: the error shows them
        converted = convert_float_to_float16(onnx.load(str(source)), keep_io_types=True)
    onnx.save(converted, str(target))


def few_bits_obstacle(model: ModelFacts, machine: MachineFacts) -> str:
    if model.is_quantized:
        return "the model is quantized already"
    if not model.has_large_matmul:
        return f"it has no MatMul or Gemm with at least {LARGE_WEIGHT} weights"
    return ""


def int8_weights(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    _weights(source, target, 8)


def int4_weights(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    _weights(source, target, 4)


@quiet_logs()
def _weights(source: Path, target: Path, bits: int) -> None:
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.onnx_model import ONNXModel

    loaded = onnx.load(str(source))
    for number, node in enumerate(loaded.graph.node):
        node.name = node.name or f"node_{number}"  # nodes are excluded by name
    model = ONNXModel(loaded)
    model.replace_gemm_with_matmul()
    weights = {each.name: each for each in model.model.graph.initializer}
    small = [
        node.name
        for node in model.model.graph.node
        if node.op_type == "MatMul"
        and node.input[1] in weights
        and (_elements(weights[node.input[1]].dims) < LARGE_WEIGHT or weights[node.input[1]].dims[0] < _BLOCK)
    ]
    quantizer = MatMulNBitsQuantizer(
        model.model,
        bits=bits,
        block_size=_BLOCK,
        is_symmetric=True,
        accuracy_level=_INT8_ACTIVATIONS,
        nodes_to_exclude=small,
    )
    quantizer.process()
    result = quantizer.model.model
    if not any(node.op_type == "MatMulNBits" for node in result.graph.node):
        raise ValueError("no weight was quantized")
    onnx.save(result, str(target))


def _elements(dims: object) -> int:
    count = 1
    for size in dims:  # type: ignore[attr-defined]
        count *= size
    return count
