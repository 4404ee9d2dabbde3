"""Shapes and dims: whether they fit, and how errors show them."""

from __future__ import annotations

from collections.abc import Sequence


def fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether a shape has the declared ``dims``, where -1 is any size."""
    if len(shape) != len(dims):
        return False
    return all(size >= 0 if declared == -1 else size == declared for size, declared in zip(shape, dims, strict=True))


def shown(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
