"""Shapes of tensors that pass between a model with a batch dimension and one without. Pure; the rules are Triton's."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.models.shapes import fits


def fit_shape(shape: tuple[int, ...], rows: int, dims: Sequence[int], batched: bool) -> tuple[int, ...]:
    """The shape of a tensor for the model that receives it.

    ``rows`` is its batch size, 0 if the model that made it does not batch. ``dims`` and ``batched`` are declared by the
    receiving model. A tensor that fits one row of a batch becomes a batch of one. A batch of one loses its first
    dimension if the receiving model has no place for it. Any other shape is unchanged, and the receiving model's
    signature decides whether it fits.
    """
    if batched == (rows > 0):
        return shape
    if batched:
        return (1, *shape) if fits(shape, dims) else shape
    return shape[1:] if rows == 1 and not fits(shape, dims) else shape
