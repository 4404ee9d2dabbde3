"""The training loop: Adam over batches for some epochs, with a learning rate that falls to zero along a cosine.

It checks what it is given in every step, so that a mistake is one sentence and not a traceback of torch: shapes of
batches, batches that end after one epoch, losses that are not a finite scalar.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from isochrone.errors import InvalidArgument, ModelFailed

#: Pairs of inputs and targets. They are iterated once per epoch: a list or a DataLoader, not a generator.
Batches = Iterable[tuple[Any, Any]]
#: Computes the scalar to be minimised from inputs and targets.
LossOfBatch = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One finished epoch: its number from 1, of how many, and the mean loss of its batches."""

    epoch: int
    epochs: int
    loss: float


def fit(
    parameters: Sequence[Any],
    batches: Batches,
    loss_of_batch: LossOfBatch,
    *,
    epochs: int,
    learning_rate: float,
    on_epoch: Callable[[EpochReport], object] | None = None,
) -> tuple[float, ...]:
    """Minimise ``loss_of_batch`` over ``parameters``; return the mean loss of each epoch."""
    check_training_settings(epochs, learning_rate)
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    losses: list[float] = []
    for epoch in range(1, epochs + 1):
        total, count = 0.0, 0
        steps = _length_of(batches)
        for inputs, targets in checked(batches, epoch):
            # Batches without a length: the rate falls from epoch to epoch only.
            done = (epoch - 1 + (count / steps if steps else 0.0)) / epochs
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * (1 + math.cos(math.pi * min(1.0, done))) / 2
            count += 1
            loss = _checked_loss(loss_of_batch, inputs, targets, f"batch {count} of epoch {epoch}")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / count)
        if on_epoch is not None:
            on_epoch(EpochReport(epoch, epochs, losses[-1]))
    return tuple(losses)


def check_training_settings(epochs: int, learning_rate: float) -> None:
    if epochs < 1:
        raise InvalidArgument(f"epochs must be at least 1, not {epochs}")
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise InvalidArgument(f"learning_rate must be a number above 0, not {learning_rate}")


def checked(batches: Batches, epoch: int = 1) -> Iterator[tuple[Any, Any]]:
    """The batches of one epoch; raise an error for one that is no pair of tensors with rows of the same shape."""
    row: tuple[int, ...] | None = None
    number = 0
    for number, batch in enumerate(batches, 1):
        where = f"batch {number} of epoch {epoch}"
        if not (isinstance(batch, (tuple, list)) and len(batch) == 2 and all(map(torch.is_tensor, batch))):
            raise InvalidArgument(f"{where} is no pair of tensors (inputs, targets), but {_described(batch)}")
        inputs, targets = batch
        if inputs.ndim < 1 or len(inputs) == 0:
            raise InvalidArgument(f"{where} has no rows: its inputs have the shape {tuple(inputs.shape)}")
        if targets.ndim < 1 or len(targets) != len(inputs):
            shapes = f"{tuple(inputs.shape)} and {tuple(targets.shape)}"
            raise InvalidArgument(
                f"{where}: inputs and targets differ in their number of rows, their shapes are {shapes}"
            )
        row = tuple(inputs.shape[1:]) if row is None else row
        if tuple(inputs.shape[1:]) != row:
            raise InvalidArgument(
                f"{where}: its rows have the shape {tuple(inputs.shape[1:])}, those of the first batch have {row}"
            )
        yield inputs, targets
    if number == 0:
        raise InvalidArgument(
            f"there are no batches for epoch {epoch}: pass a list or a DataLoader, which can be iterated again, "
            "and not an empty one or a generator"
        )


def outputs_of(module: Any, inputs: Any) -> Any:
    """What ``module`` computes; an error that names the shape where it does not take ``inputs``."""
    try:
        outputs = module(inputs)
    except (RuntimeError, ValueError, TypeError) as error:
        shape = tuple(inputs.shape)
        raise InvalidArgument(
            f"the module does not take inputs of shape {shape} and type {inputs.dtype}: {_first_line(error)}"
        ) from error
    if not torch.is_tensor(outputs):
        raise InvalidArgument(f"the module must return one tensor, not {_described(outputs)}")
    return outputs


def _checked_loss(loss_of_batch: LossOfBatch, inputs: Any, targets: Any, where: str) -> Any:
    try:
        loss = loss_of_batch(inputs, targets)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shapes = f"inputs of shape {tuple(inputs.shape)} and targets of shape {tuple(targets.shape)}"
        raise InvalidArgument(f"{where}: the loss cannot be computed for {shapes}: {_first_line(error)}") from error
    if not torch.is_tensor(loss) or loss.numel() != 1:
        raise InvalidArgument(f"{where}: the loss must be a tensor with one element, not {_described(loss)}")
    if not bool(torch.isfinite(loss)):
        raise ModelFailed(
            f"{where}: the loss is {loss.item()}; lower learning_rate, or look for inputs that are not finite"
        )
    return loss


def _described(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if torch.is_tensor(value) else f"a {type(value).__name__}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _length_of(batches: Batches) -> int:
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        return 0
