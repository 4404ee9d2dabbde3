"""Training that makes a torch module smaller: quantization-aware training, and distillation into a smaller module.

    train_quantized     a module trained to compute in INT8, and written as an ONNX file whose layers run in INT8
    distill             a small module trained on the outputs of a large one

Both train a copy and leave the modules that they are given as they are. Needs the extra ``isochrone[training]``.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"isochrone.optimize.training needs torch (pip install isochrone[training]): {error}") from error

from isochrone.optimize.training.distillation import DistilledResult, distill
from isochrone.optimize.training.fitting import EpochReport
from isochrone.optimize.training.quantization_aware import QuantizedResult, train_quantized

__all__ = ["DistilledResult", "EpochReport", "QuantizedResult", "distill", "train_quantized"]
