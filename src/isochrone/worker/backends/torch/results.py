"""Matching the results of a module to the declared outputs: by position, or by key if the module returns a dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from isochrone.errors import ModelFailed
from isochrone.worker.backends.tensors.datatypes import datatype_of


class Results:
    """The outputs that one model declares."""

    def __init__(self, label: str, names: Sequence[str]) -> None:
        self._label = label
        self._names = names

    def matched(self, results: Any) -> dict[str, Any]:
        """The results of the module by output name."""
        if isinstance(results, dict):
            missing = [name for name in self._names if name not in results]
            if missing:
                given = ", ".join(map(str, results))
                raise ModelFailed(f"{self._label}: output '{missing[0]}': expected a key of that name, given {given}")
            return results
        values = results if isinstance(results, (tuple, list)) else (results,)
        if len(values) < len(self._names):
            raise ModelFailed(f"{self._label}: expected {len(self._names)} outputs, given {len(values)}")
        return dict(zip(self._names, values, strict=False))

    def check(self, name: str, expected: np.dtype[Any], value: Any, *, converts: bool = False) -> None:
        """Raises unless a result is a tensor of the declared type; ``converts``: or of another floating type."""
        if not hasattr(value, "is_floating_point"):
            raise ModelFailed(f"{self._label}: output '{name}': expected a tensor, given a {type(value).__name__}")
        given = numpy_type(value.dtype)
        if given != expected and not (converts and _is_float(given) and _is_float(expected)):
            raise ModelFailed(
                f"{self._label}: output '{name}': expected {datatype_of(expected)}, given {datatype_of(given)}"
            )


def numpy_type(torch_type: Any) -> np.dtype[Any]:
    name = str(torch_type).rpartition(".")[2]
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == ml_dtypes.bfloat16
