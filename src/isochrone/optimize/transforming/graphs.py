"""Changes of the graph that keep its numbers: simplification by onnxslim, fusion by onnxruntime's optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isochrone.optimize.transforming.facts import MachineFacts, ModelFacts

Batches = list[dict[str, Any]]


def slim_obstacle(model: ModelFacts, machine: MachineFacts) -> str:
    return ""


def slim(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    import onnxslim

    onnxslim.slim(str(source), str(target))


def fuse_obstacle(model: ModelFacts, machine: MachineFacts) -> str:
    if model.is_quantized:
        return "the model is quantized"
    if not {"LayerNormalization", "Softmax", "Erf", "Gelu", "SkipLayerNormalization"} & model.operators:
        return "it has no attention, layer normalization or GELU to fuse"
    return ""


def fuse(source: Path, target: Path, batches: Batches, machine: MachineFacts) -> None:
    import onnx
    from onnxruntime.transformers.optimizer import optimize_model

    # opt_level 0: onnxruntime applies its own fusions when it loads the file, on whatever machine that is. Given the
    # message and not the path, since the optimizer would write beside the path.
    optimized = optimize_model(onnx.load(str(source)), model_type="bert", opt_level=0, use_gpu=machine.on_gpu)
    if not any(optimized.get_fused_operator_statistics().values()):
        raise ValueError("nothing was fused")
    optimized.save_model_to_file(str(target))
