"""How a tensor passes between a model with a batch dimension and one without. Pure; the rules are Triton's."""

from __future__ import annotations

from collections.abc import Sequence


def fit_shape(shape: tuple[int, ...], rows: int, dims: Sequence[int], batched: bool) -> tuple[int, ...]:
    """The shape in which a tensor is handed on between a model that batches and one that does not.

    ``rows``: its batch size, 0 where its maker does not batch. ``dims`` and ``batched``: what its taker declares. What
    fits a row of the taker's batch becomes a batch of one; a batch of one loses its first dimension where the taker has
    no place for it. Everything else stays, and the taker's signature says whether it fits.
    """
    if batched == (rows > 0):
        return shape
    fits = _match(dims, shape)
    if batched:
        return (1, *shape) if fits else shape
    return shape[1:] if rows == 1 and not fits else shape


def _match(dims: Sequence[int], shape: Sequence[int]) -> bool:
    return len(dims) == len(shape) and all(declared in (-1, size) for declared, size in zip(dims, shape, strict=True))
