"""The check that results have a row for each row of their batch: whoever slices them relies on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from isochrone.errors import ModelFailed


def check_rows(results: Iterable[tuple[str, Any]], rows: int) -> None:
    """``results`` are arrays or tensors, by name. Raises ModelFailed."""
    for name, result in results:
        shape = result.shape
        if not len(shape) or shape[0] != rows:
            raise ModelFailed(f"output '{name}': expected {rows} rows, one for each given, given {list(shape)}")
