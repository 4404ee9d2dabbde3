"""INT8 by onnxruntime.quantization: dynamic, and static with three ways to choose the ranges of activations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isochrone.optimize.transforming.facts import MachineFacts, ModelFacts
from isochrone.optimize.transforming.graphs import Batches
from isochrone.optimize.transforming.quiet_logs import quiet_logs

#: Before opset 13, QuantizeLinear has no axis, so weights cannot have a scale per channel.
_PER_CHANNEL_OPSET = 13
_DYNAMIC = ("MatMul", "Gemm", "Attention", "LSTM")
_MATRICES = ("MatMul", "Gemm", "Attention")
#: Beside convolutions: what stands between them, so that values stay in INT8 from one to the next.
_WITH_CONVOLUTIONS = ("Conv", "MatMul", "Gemm", "Add", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat")


def dynamic_obstacle(model: ModelFacts, machine: MachineFacts) -> str:
    if model.is_quantized:
        return "the model is quantized already"
    if machine.on_gpu:
        return "onnxruntime computes dynamically quantized operators on the CPU"
    if not model.operators & {*_DYNAMIC}:
        return "it has no MatMul, Gemm, Attention or LSTM"
    return ""


def static_obstacle(model: ModelFacts, machine: MachineFacts) -> str:
    if model.is_quantized:
        return "the model is quantized already"
    if machine.on_gpu:
        return "onnxruntime's CUDA provider has no INT8 kernels"
    if model.opset < _PER_CHANNEL_OPSET:
        return f"its opset is {model.opset}; scales per channel need {_PER_CHANNEL_OPSET}"
    if not model.has_float_weights:
        return "it has no MatMul, Gemm or Conv with FP32 weights"
    return ""


@quiet_logs()
def dynamic(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        source,
        target,
        op_types_to_quantize=list(_DYNAMIC),
        per_channel=True,
        reduce_range=machine.overflows_with_int8_weights,
        weight_type=QuantType.QInt8,
        extra_options={"DefaultTensorType": 1},
    )


def static_minmax(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    _static(source, target, batches, machine, "MinMax")


def static_entropy(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    _static(source, target, batches, machine, "Entropy")


def static_percentile(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    _static(source, target, batches, machine, "Percentile")


@quiet_logs()
def _static(source: Path, target: Path, batches: Batches, machine: MachineFacts, method: str) -> None:
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches: Iterator[dict[str, Any]] = iter(batches)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._batches, None)

    prepared = target.with_suffix(".prepared.onnx")
    try:
        quant_pre_process(source, prepared)
    except Exception:  # symbolic shapes fail for some operators; quantization also works with those of onnx
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
    operators = {node.op_type for node in onnx.load(str(prepared)).graph.node}
    quantize_static(
        prepared,
        target,
        Reader(),
        op_types_to_quantize=list(_WITH_CONVOLUTIONS if "Conv" in operators else _MATRICES),
        per_channel=True,
        reduce_range=machine.overflows_with_int8_weights,
        # x86 multiplies unsigned activations by signed weights; Arm has both.
        activation_type=QuantType.QInt8 if machine.is_arm else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod[method],
    )
    prepared.unlink()
