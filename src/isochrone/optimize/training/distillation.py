"""Distillation: a small module learns from the outputs of a large one beside the labels (arXiv:1503.02531)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from isochrone.errors import InvalidArgument
from isochrone.optimize.training.fitting import Batches, EpochReport, fit, outputs_of


@dataclass(frozen=True, slots=True)
class DistilledResult:
    """The trained student, in evaluation mode, and the mean loss of each epoch."""

    module: Any
    losses: tuple[float, ...]


def distill(
    teacher: Any,
    student: Any,
    batches: Batches,
    *,
    epochs: int,
    temperature: float = 4.0,
    weight: float = 0.9,
    learning_rate: float = 2e-3,
    seed: int = 0,
    on_epoch: Callable[[EpochReport], object] | None = None,
) -> DistilledResult:
    """Train a copy of ``student`` to classify: both modules return logits, targets are the numbers of the classes.

    ``weight`` is the teacher's share of the loss; the labels have the rest. 0 trains on labels alone; 1 ignores the
    targets, which may be anything. A higher ``temperature`` gives wrong classes, as the teacher ranks them, a larger
    part in the loss. The same ``seed``, batches and number of threads give the same result on a CPU.
    """
    if not 0 <= weight <= 1:
        raise InvalidArgument(f"weight must be from 0 (labels alone) to 1 (the teacher alone), not {weight}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise InvalidArgument(f"temperature must be a number above 0, not {temperature}")
    for name, module in (("teacher", teacher), ("student", student)):
        if not isinstance(module, nn.Module):
            raise InvalidArgument(f"the {name} must be a torch.nn.Module, not a {type(module).__name__}")
    student = copy.deepcopy(student).train()
    parameters = [parameter for parameter in student.parameters() if parameter.requires_grad]
    if not parameters:
        raise InvalidArgument(f"the student {type(student).__name__} has no parameters to train")
    frozen_teacher = copy.deepcopy(teacher).eval()

    def loss_of_batch(inputs: Any, targets: Any) -> Any:
        outputs = outputs_of(student, inputs)
        if weight == 0:
            return nn.functional.cross_entropy(outputs, targets)
        with torch.no_grad():
            taught = outputs_of(frozen_teacher, inputs)
        return distillation_loss(outputs, taught, targets, temperature, weight)

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        losses = fit(parameters, batches, loss_of_batch, epochs=epochs, learning_rate=learning_rate, on_epoch=on_epoch)
    return DistilledResult(student.eval(), losses)


def distillation_loss(outputs: Any, taught: Any, targets: Any, temperature: float, weight: float) -> Any:
    """The divergence from the teacher's softened classes and the cross entropy of the labels, by ``weight``.

    The square of the temperature keeps the gradients of the first as large as those of the second. A weight of 1 leaves
    the targets unread.
    """
    if outputs.shape != taught.shape:
        shapes = f"{tuple(outputs.shape)} and {tuple(taught.shape)}"
        raise InvalidArgument(
            f"student and teacher must return the same classes, their outputs have the shapes {shapes}"
        )
    soft = nn.functional.kl_div(
        nn.functional.log_softmax(outputs / temperature, dim=1),
        nn.functional.log_softmax(taught / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )
    if weight == 1:
        return temperature**2 * soft
    return weight * temperature**2 * soft + (1 - weight) * nn.functional.cross_entropy(outputs, targets)
