"""Fake quantization: values rounded to the grid of an integer type, still as floats, through which gradients pass.

The scale of a grid is calibrated first: the one with the least squared error on observed values. Then it is learned
with the weights (learned step size quantization, https://arxiv.org/abs/1902.08153): as a factor of the calibrated
scale, so that one learning rate suits scales of every size. Zero points stay as calibrated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

#: Activations are UINT8 with a zero point, which every INT8 kernel of onnxruntime takes.
ACTIVATION_STEPS = 255
#: Scales below are taken for a range without values: those of a dead channel.
LEAST_SCALE = 1e-8
#: Shares of the observed range that calibration compares.
_SHARES = tuple(share / 40 for share in range(40, 9, -1))
#: Values that calibration keeps of one batch.
_KEPT = 8192


class _Rounded(torch.autograd.Function):  # type: ignore[misc]
    """To the grid ``scale * (integer - zero_point)`` and back, one scale per row of ``values``.

    Gradients pass where the value is inside of the grid, and reach the scale by the rounding error (inside) or by the
    end of the grid that the value is cut to (outside).
    """

    @staticmethod
    def forward(ctx: Any, values: Any, scale: Any, zero_point: int, first: int, last: int) -> Any:
        steps = values / scale
        cut = torch.clamp(torch.round(steps) + zero_point, first, last) - zero_point
        inside = (steps >= first - zero_point) & (steps <= last - zero_point)
        ctx.save_for_backward(cut - torch.where(inside, steps, 0), inside)
        ctx.scale_shape = scale.shape
        return cut * scale

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        slope, inside = ctx.saved_tensors
        to_scale = (gradient * slope).sum_to_size(ctx.scale_shape) if ctx.scale_shape else (gradient * slope).sum()
        return gradient * inside, to_scale, None, None, None


def rounded(values: Any, scale: Any, zero_point: int, first: int, last: int) -> Any:
    return _Rounded.apply(values, scale, zero_point, first, last)


class ActivationQuantizer(nn.Module):  # type: ignore[misc]
    """Rounds activations to UINT8, with one scale for the tensor. It passes values on unchanged while it observes."""

    def __init__(self) -> None:
        super().__init__()
        self.observing = True
        self.zero_point = 0
        self._kept: list[Any] = []
        self._low = 0.0
        self._high = 0.0
        self.register_buffer("calibrated", torch.tensor(1.0))
        self.factor = nn.Parameter(torch.tensor(0.0))

    @property
    def scale(self) -> Any:
        return self.calibrated * torch.exp(self.factor)

    def forward(self, values: Any) -> Any:
        if self.observing:
            self._observe(values.detach())
            return values
        if torch.onnx.is_in_onnx_export():
            return torch.fake_quantize_per_tensor_affine(
                values, float(self.scale), self.zero_point, 0, ACTIVATION_STEPS
            )
        return rounded(values, self.scale, self.zero_point, 0, ACTIVATION_STEPS)

    def _observe(self, values: Any) -> None:
        flat = values.flatten()
        self._low = min(self._low, float(flat.min()))
        self._high = max(self._high, float(flat.max()))
        self._kept.append(flat[torch.randint(len(flat), (_KEPT,), device=flat.device)])

    def calibrate(self) -> None:
        """Take the range with the least error on the observed values, and round to it from now on."""
        span = max(self._high - self._low, LEAST_SCALE * ACTIVATION_STEPS)
        self.zero_point = round(-self._low / span * ACTIVATION_STEPS)
        values = torch.cat(self._kept)[None]
        low, high = self._low, self._high
        scale = max(-low / max(self.zero_point, 1), high / max(ACTIVATION_STEPS - self.zero_point, 1), LEAST_SCALE)
        widest = torch.full((1, 1), scale, device=values.device)
        self.calibrated.copy_(least_error_scale(values, widest, self.zero_point, 0, ACTIVATION_STEPS)[0, 0])
        self.observing = False
        self._kept.clear()


class WeightQuantizer(nn.Module):  # type: ignore[misc]
    """Rounds a weight to signed integers of ``bits`` bits, one scale per output channel. A parametrization of torch.

    The grid is symmetric: it leaves out the least integer, so that every weight has its negative.
    """

    def __init__(self, weight: Any, bits: int) -> None:
        super().__init__()
        self.last = 2 ** (bits - 1) - 1
        rows = weight.detach().flatten(1)
        widest = (rows.abs().amax(1, keepdim=True) / self.last).clamp_min(LEAST_SCALE)
        found = least_error_scale(rows, widest, 0, -self.last, self.last)
        self.register_buffer("calibrated", found.reshape(-1, *[1] * (weight.ndim - 1)))
        self.factor = nn.Parameter(torch.zeros_like(self.calibrated))

    @property
    def scale(self) -> Any:
        return self.calibrated * torch.exp(self.factor)

    def forward(self, weight: Any) -> Any:
        return rounded(weight, self.scale, 0, -self.last, self.last)


def least_error_scale(
    rows: Any, widest: Any, zero_point: int, first: int, last: int, shares: Sequence[float] = _SHARES
) -> Any:
    """For each row the share of its ``widest`` scale at which rounding changes the row least, by the squared error."""
    best, least = widest, torch.full_like(widest, float("inf"))
    for share in shares:
        scale = widest * share
        error = (rounded(rows, scale, zero_point, first, last) - rows).square().sum(1, keepdim=True)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return best
