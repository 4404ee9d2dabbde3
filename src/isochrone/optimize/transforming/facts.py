"""What decides whether a transformation applies: the operators of a model, and what this machine has."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Operators of graphs that are quantized already.
_QUANTIZED = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "MatMulNBits"}
)
#: Weights of fewer elements gain nothing from four bits: scales and the conversion cost as much.
LARGE_WEIGHT = 1 << 16
_WEIGHTED = frozenset({"Gemm", "MatMul", "Conv"})


@dataclass(frozen=True, slots=True)
class ModelFacts:
    operators: frozenset[str]
    opset: int
    has_float_weights: bool
    has_large_matmul: bool

    @property
    def is_quantized(self) -> bool:
        return bool(self.operators & _QUANTIZED) or any(name.startswith("QLinear") for name in self.operators)


@dataclass(frozen=True, slots=True)
class MachineFacts:
    cpu_flags: frozenset[str]
    cpus: int
    """That this process may use."""
    on_gpu: bool
    has_openvino: bool

    @property
    def is_arm(self) -> bool:
        return "asimd" in self.cpu_flags

    @property
    def has_int8_dot_products(self) -> bool:
        return bool(self.cpu_flags & {"asimddp", "avx512_vnni", "avx_vnni", "amx_int8"})

    @property
    def overflows_with_int8_weights(self) -> bool:
        """Without dot products of four bytes, x86 adds two products in 16 bits: 7 bits of weights fit, 8 do not."""
        return not self.is_arm and not self.has_int8_dot_products

    @property
    def computes_fp16(self) -> bool:
        return self.on_gpu or bool(self.cpu_flags & {"asimdhp", "avx512_fp16", "amx_fp16"})

    @property
    def computes_bf16(self) -> bool:
        return bool(self.cpu_flags & {"bf16", "avx512_bf16", "amx_bf16"})


def model_facts(model: Any) -> ModelFacts:
    """Of a loaded ``ModelProto``."""
    from onnx import TensorProto

    weights = {each.name: each for each in model.graph.initializer if each.data_type == TensorProto.FLOAT}
    sizes = {name: _elements(each) for name, each in weights.items() if len(each.dims) >= 2}
    used = [
        sizes[node.input[1]]
        for node in model.graph.node
        if node.op_type in _WEIGHTED and len(node.input) > 1 and node.input[1] in sizes
    ]
    matrices = [
        sizes[node.input[1]]
        for node in model.graph.node
        if node.op_type in ("Gemm", "MatMul") and len(node.input) > 1 and node.input[1] in sizes
    ]
    opset = max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)
    return ModelFacts(
        frozenset(node.op_type for node in model.graph.node),
        opset,
        bool(used),
        any(size >= LARGE_WEIGHT for size in matrices),
    )


def _elements(tensor: Any) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count


def machine_facts(*, on_gpu: bool = False, cpuinfo: Path = Path("/proc/cpuinfo")) -> MachineFacts:
    flags: set[str] = set()
    try:
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("flags", "features"):
                flags.update(value.split())
                break
    except OSError:
        pass  # then no instruction is taken for granted
    has_openvino = importlib.util.find_spec("openvino") is not None
    return MachineFacts(frozenset(flags), len(os.sched_getaffinity(0)), on_gpu, has_openvino)
