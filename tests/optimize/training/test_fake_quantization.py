"""Rounding to a grid: its values, its gradients, and the scale that calibration chooses."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.optimize.training.fake_quantization import (
    ACTIVATION_STEPS,
    ActivationQuantizer,
    WeightQuantizer,
    least_error_scale,
    rounded,
)

floats = st.floats(-1000, 1000, width=32)


@settings(deadline=None)
@given(st.lists(floats, min_size=1, max_size=30), st.floats(0.0009765625, 10, width=32), st.integers(0, 255))
def test_values_are_on_the_grid_and_near(values: list[float], scale: float, zero_point: int) -> None:
    given_values, step = torch.tensor(values, dtype=torch.float64), torch.tensor(scale, dtype=torch.float64)
    found = rounded(given_values, step, zero_point, 0, ACTIVATION_STEPS)
    integers = found / step + zero_point
    assert torch.allclose(integers, integers.round(), atol=1e-6)
    low, high = -zero_point * scale, (ACTIVATION_STEPS - zero_point) * scale
    cut = given_values.clamp(low, high)
    assert bool(((found - cut).abs() <= scale / 2 * (1 + 1e-9)).all())


def test_gradients_pass_inside_and_reach_the_scale() -> None:
    values = torch.tensor([0.26, -3.0, 50.0], requires_grad=True)
    scale = torch.tensor(0.1, requires_grad=True)
    rounded(values, scale, 0, 0, 255).sum().backward()
    assert values.grad.tolist() == [1.0, 0.0, 0.0]
    # Inside: 3 - 2.6; below: the first integer, 0; above: the last, 255.
    assert abs(scale.grad.item() - (0.4 + 0 + 255)) < 1e-4


@settings(deadline=None)
@given(st.lists(floats, min_size=2, max_size=40))
def test_the_chosen_scale_is_no_worse_than_the_widest(values: list[float]) -> None:
    rows = torch.tensor([values])
    widest = (rows.abs().amax(1, keepdim=True) / 7).clamp_min(1e-8)
    chosen = least_error_scale(rows, widest, 0, -7, 7)

    def error(scale: torch.Tensor) -> float:
        return float((rounded(rows, scale, 0, -7, 7) - rows).square().sum())

    assert error(chosen) <= error(widest)
    assert float(chosen) <= float(widest)


def test_activations_that_are_never_negative_have_the_zero_point_zero() -> None:
    quantizer = ActivationQuantizer()
    values = torch.linspace(0, 4, 100)
    assert torch.equal(quantizer(values), values)
    quantizer.calibrate()
    assert quantizer.zero_point == 0
    assert (quantizer(values) - values).abs().max().item() < 0.5


def test_activations_without_any_range_stay_zero() -> None:
    quantizer = ActivationQuantizer()
    quantizer(torch.zeros(10))
    quantizer.calibrate()
    assert torch.equal(quantizer(torch.zeros(3)), torch.zeros(3))


def test_a_channel_of_zeros_stays_zero() -> None:
    weight = torch.stack([torch.zeros(5), torch.linspace(-1, 1, 5)])
    found = WeightQuantizer(weight, 8)(weight)
    assert torch.equal(found[0], torch.zeros(5))
    assert torch.allclose(found[1], weight[1], atol=0.01)
