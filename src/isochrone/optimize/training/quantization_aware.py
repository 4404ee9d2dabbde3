"""Quantization-aware training: a module is trained while its layers round as their INT8 kernels will.

prepare     fold batch normalisation, put quantizers into a traced copy (``preparing``)
calibrate   observe the first batches, choose scales (``fake_quantization``)
train       weights and scales together (``fitting``)
write       an ONNX file with QDQ nodes (``quantized_onnx``), which onnxruntime runs with INT8 kernels
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from isochrone.errors import InvalidArgument
from isochrone.optimize.training.fake_quantization import ActivationQuantizer
from isochrone.optimize.training.fitting import (
    Batches,
    EpochReport,
    check_training_settings,
    checked,
    fit,
    outputs_of,
)
from isochrone.optimize.training.preparing import prepared
from isochrone.optimize.training.quantized_onnx import write_quantized
from isochrone.optimize.transforming.facts import machine_facts

#: Of weights: below, the grid has less than three integers; above, no INT8 kernel takes them.
WEIGHT_BITS = range(2, 9)
CALIBRATION_BATCHES = 8


@dataclass(frozen=True, slots=True)
class QuantizedResult:
    """``module`` computes with the rounding of the file that ``write`` writes. ``losses``: the mean of each epoch.

    ``quantized_layers`` and ``float_layers`` name the layers with parameters: those in INT8, and those left in floats.
    """

    module: Any
    losses: tuple[float, ...]
    example: Any
    quantized_layers: tuple[str, ...]
    float_layers: tuple[str, ...]

    def write(self, path: Path | str) -> None:
        """Write ``model.onnx``: INT8 weights, input ``input``, output ``output``, any number of rows."""
        write_quantized(self.module, self.example, Path(path))


def train_quantized(
    module: Any,
    batches: Batches,
    loss: Callable[[Any, Any], Any],
    *,
    epochs: int,
    learning_rate: float = 1e-3,
    weight_bits: int | None = None,
    seed: int = 0,
    on_epoch: Callable[[EpochReport], object] | None = None,
) -> QuantizedResult:
    """Train a copy of ``module`` for INT8: ``loss(outputs, targets)`` is minimised over weights and scales.

    Start from a trained module. ``weight_bits`` below 8 makes the grid of weights coarser; activations have 8 bits.
    None: 8, or 7 where sums of products of eight bits overflow, as on x86 processors without VNNI. The same ``seed``,
    batches and number of threads give the same result on a CPU.
    """
    if weight_bits is None:
        weight_bits = 7 if machine_facts().overflows_with_int8_weights else 8
    if weight_bits not in WEIGHT_BITS:
        raise InvalidArgument(f"weight_bits must be from {WEIGHT_BITS[0]} to {WEIGHT_BITS[-1]}, not {weight_bits}")
    check_training_settings(epochs, learning_rate)
    copied = prepared(module, weight_bits)
    student = copied.module
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        example = _calibrate(student, batches)
        student.train()
        losses = fit(
            [parameter for parameter in student.parameters() if parameter.requires_grad],
            batches,
            lambda inputs, targets: loss(outputs_of(student, inputs), targets),
            epochs=epochs,
            learning_rate=learning_rate,
            on_epoch=on_epoch,
        )
    student.eval()
    return QuantizedResult(student, losses, example, copied.quantized_layers, copied.float_layers)


def _calibrate(module: Any, batches: Batches) -> Any:
    """Let the quantizers observe the first batches; return two rows of the inputs as the example of an export."""
    module.eval()
    example = None
    with torch.no_grad():
        for inputs, _targets in islice(checked(batches), CALIBRATION_BATCHES):
            if not bool(torch.isfinite(outputs_of(module, inputs)).all()):
                raise InvalidArgument("the module's outputs are not finite; train it before it is quantized")
            example = inputs[:2].clone() if example is None else example
        for part in module.modules():
            if isinstance(part, ActivationQuantizer):
                part.calibrate()
    return example
