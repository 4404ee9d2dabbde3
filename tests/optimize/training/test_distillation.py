"""Distillation: the student follows the teacher, the teacher stays as it is, and mistakes are named."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from trained_modules import CLASSES, batches, pictures, separable_net

from isochrone.errors import InvalidArgument, ModelFailed
from isochrone.optimize.training import distill
from isochrone.optimize.training.distillation import distillation_loss


def small() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))


def test_the_student_follows_a_teacher_that_contradicts_the_labels() -> None:
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))
    with torch.no_grad():
        # The last class for bright pictures, which are labelled so; the first one never.
        teacher[1].weight.copy_(torch.tensor([0.0, -1.0, 1.0])[:, None].expand(3, 36))
        teacher[1].bias.copy_(torch.tensor([-50.0, 0.0, 0.0]))
    result = distill(teacher, small(), batches(), epochs=20, weight=1.0, temperature=2.0, learning_rate=2e-2)
    pixels, _ = pictures(200, seed=3)
    with torch.no_grad():
        agree = (result.module(pixels).argmax(1) == teacher(pixels).argmax(1)).float().mean()
    assert float(agree) > 0.9
    assert result.losses[-1] < 0.5 * result.losses[0]
    assert not result.module.training


def test_neither_module_changes_and_a_seed_gives_the_same_result() -> None:
    teacher, student = separable_net(), small()
    before = [copy.deepcopy(module.state_dict()) for module in (teacher, student)]
    first, second = (distill(teacher, student, batches(), epochs=2, seed=4) for _ in range(2))
    for module, states in zip((teacher, student), before, strict=True):
        assert all(torch.equal(module.state_dict()[name], value) for name, value in states.items())
    assert first.losses == second.losses
    found, again = first.module.state_dict(), second.module.state_dict()
    assert all(torch.equal(found[name], again[name]) for name in found)


@pytest.mark.parametrize("target", [torch.tensor(-100), torch.tensor(-1), torch.tensor(0.5)])
def test_the_teacher_alone_needs_no_labels(target: Any) -> None:
    teacher, labelled = separable_net(), batches()
    unlabelled = [(pixels, target.expand(len(pixels))) for pixels, _ in labelled]
    first, second = (distill(teacher, small(), given, epochs=2, weight=1.0) for given in (labelled, unlabelled))
    assert first.losses == second.losses


logits = st.lists(st.floats(-20, 20, width=32), min_size=CLASSES, max_size=CLASSES)


@settings(deadline=None)
@given(logits, logits, st.integers(0, CLASSES - 1), st.floats(0.5, 10), st.floats(0, 1))
def test_the_loss_lies_between_its_two_parts(
    outputs: list[float], taught: list[float], label: int, temperature: float, weight: float
) -> None:
    one, other, target = torch.tensor([outputs]), torch.tensor([taught]), torch.tensor([label])

    def loss(share: float) -> float:
        return distillation_loss(one, other, target, temperature, share).item()

    low, high = sorted((loss(0.0), loss(1.0)))
    assert low - 1e-3 <= loss(weight) <= high + 1e-3
    assert loss(0.0) == pytest.approx(nn.functional.cross_entropy(one, target).item(), abs=1e-5)
    assert distillation_loss(one, one, target, temperature, 1.0).item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": 1.5}, "weight must be from 0"),
        ({"temperature": 0.0}, "temperature must be a number above 0"),
        ({"temperature": math.nan}, "temperature"),
        ({"epochs": 0}, "epochs"),
    ],
)
def test_settings_that_are_out_of_range(settings: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        distill(separable_net(), small(), batches(), **{"epochs": 1, **settings})


def test_modules_that_do_not_fit() -> None:
    with pytest.raises(InvalidArgument, match="must return the same classes"):
        distill(nn.Sequential(nn.Flatten(), nn.Linear(36, 5)), small(), batches(), epochs=1)
    with pytest.raises(InvalidArgument, match=r"the teacher must be a torch\.nn\.Module"):
        distill(None, small(), batches(), epochs=1)
    with pytest.raises(InvalidArgument, match="no parameters to train"):
        distill(small(), nn.Flatten(), batches(), epochs=1)
    with pytest.raises(InvalidArgument, match="epoch 2: pass a list"):
        distill(small(), small(), iter(batches()), epochs=2)


def test_a_teacher_that_is_not_finite() -> None:
    teacher = small()
    with torch.no_grad():
        teacher[1].weight.fill_(math.nan)
    with pytest.raises(ModelFailed, match="the loss is nan"):
        distill(teacher, small(), batches(), epochs=1)
