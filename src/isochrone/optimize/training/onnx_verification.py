"""Compares an ONNX file, as onnxruntime runs it by default, with the module that it was written from.

onnxruntime replaces QDQ nodes by INT8 kernels, which assume more than the nodes say. Both sides round alike except for
values between two integers: those may move by one step of a quantizer. How far such moves carry to the outputs is
measured on the module; a larger difference is an error.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import onnxruntime
import torch

from isochrone.errors import Unsupported
from isochrone.optimize.training.fake_quantization import ActivationQuantizer

#: Of the largest output: layers in floats add in another order.
FLOAT_TOLERANCE = 1e-3
#: The measured moves are a sample of the possible ones.
_MARGIN = 2.0
_RANDOM_MOVES = 6


def verify(model: bytes, module: Any, example: Any) -> None:
    """Raise an error if ``model`` computes other outputs from ``example`` than ``module`` does."""
    module, example = copy.deepcopy(module).cpu().eval(), example.detach().cpu()
    with torch.no_grad():
        expected = module(example)
        difference = float((_served(model, example) - expected).abs().max())
        allowed = _MARGIN * _effect_of_rounding(module, example, expected)
    allowed += FLOAT_TOLERANCE * float(expected.abs().max())
    if not difference <= allowed:
        raise Unsupported(
            f"onnxruntime computes other values from the ONNX model than the module: they differ by {difference:.3g}, "
            f"rounding explains {allowed:.3g}; nothing was written. On x86 processors without VNNI, weight_bits=7 "
            "avoids saturating sums; elsewhere, leave the layers that differ out of the module"
        )


def _served(model: bytes, example: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return torch.from_numpy(session.run(["output"], {"input": example.numpy()})[0])
    except Exception as error:  # onnxruntime's errors have no base class of their own.
        raise Unsupported(f"onnxruntime cannot run the ONNX model, nothing was written: {error}") from error


def _effect_of_rounding(module: Any, example: Any, expected: Any) -> float:
    """The largest change of an output while every quantized value moves by one step, up or down.

    ``module`` is changed by it.
    """
    moves = _moves()
    current = next(moves)

    def move(quantizer: Any, arguments: tuple[Any, ...]) -> Any:
        (values,) = arguments
        return values + current(values) * quantizer.scale

    for part in module.modules():
        if isinstance(part, ActivationQuantizer):
            part.register_forward_pre_hook(move)
    largest = 0.0
    while current is not None:
        largest = max(largest, float((module(example) - expected).abs().max()))
        current = next(moves, None)
    return largest


def _moves() -> Iterator[Any]:
    """Functions from values to -1 or 1 for each: all up, all down, and some at random."""
    yield torch.ones_like
    yield lambda values: -torch.ones_like(values)
    random = torch.Generator().manual_seed(0)
    for _ in range(_RANDOM_MOVES):
        yield lambda values: 2.0 * torch.randint(2, values.shape, generator=random) - 1
