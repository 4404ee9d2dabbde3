"""The data of an ``.npz`` file as runs of a model: one half to calibrate with, the other to measure errors on.

Runs are shuffled by a seed before they are divided, so that a file sorted by class serves both halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isochrone.errors import ConfigError
from isochrone.models.file_tensors import FileTensor
from isochrone.optimize.arrays_file import read_arrays
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME

#: More calibrate no better, and histograms of them take minutes.
MOST_CALIBRATION_RUNS = 256
MOST_HELD_OUT_RUNS = 1024
_LEAST_RUNS = 4

Runs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Data:
    calibration: Runs
    """Input name → array with one entry for each run."""
    held_out: Runs
    labels: Any | None
    """One entry for each held-out run, with a label per row."""
    rows: int
    """Of one run."""

    @property
    def held_out_rows(self) -> int:
        return self.rows * len(next(iter(self.held_out.values())))


def read_data(
    path: Path, inputs: Sequence[FileTensor], *, batch: int | None = None, labels: str = "", seed: int = 0
) -> Data:
    """Raises a ``ConfigError`` that names the array and what the model expects."""
    arrays = read_arrays(path)
    label_array = None
    if labels:
        if labels not in arrays:
            raise ConfigError(str(path), "labels", f"an array '{labels}', as --labels says", _names(arrays))
        label_array = arrays.pop(labels)
    _check_names(path, arrays, inputs)
    runs = {each.name: _runs(path, each, arrays[each.name], batch) for each in inputs}
    counts = {name: len(array) for name, array in runs.items()}
    count = min(counts.values())
    if len(set(counts.values())) > 1:
        given = ", ".join(f"{number} of '{name}'" for name, number in counts.items())
        raise ConfigError(str(path), "arrays", "as many runs of every input", given)
    if count < _LEAST_RUNS:
        expected = f"at least {_LEAST_RUNS} runs: one half calibrates, the other measures errors"
        raise ConfigError(str(path), "arrays", expected, str(count))
    rows = _rows(inputs, arrays, runs)
    order = np.random.default_rng(seed).permutation(count)
    calibration, held_out = order[: count // 2][:MOST_CALIBRATION_RUNS], order[count // 2 :][:MOST_HELD_OUT_RUNS]
    label_runs = None
    if label_array is not None:
        label_runs = _label_runs(path, labels, label_array, count, rows)[held_out]
    return Data(
        {name: array[calibration] for name, array in runs.items()},
        {name: array[held_out] for name, array in runs.items()},
        label_runs,
        rows,
    )


def _check_names(path: Path, arrays: dict[str, Any], inputs: Sequence[FileTensor]) -> None:
    known = [each.name for each in inputs]
    missing = [name for name in known if name not in arrays]
    if missing:
        expected = "an array for each input: " + ", ".join(f"'{name}'" for name in known)
        raise ConfigError(str(path), "arrays", expected, _names(arrays))
    extra = [name for name in arrays if name not in known]
    if extra:
        expected = "only inputs of the model (" + ", ".join(known) + "); --labels names an array of labels"
        raise ConfigError(str(path), "arrays", expected, _names(extra))


def _runs(path: Path, tensor: FileTensor, array: Any, batch: int | None) -> Any:
    """The array with one entry for each run, in the model's type."""
    key = f"array '{tensor.name}'"
    kind = NUMPY_BY_NAME.get(tensor.datatype)
    if kind is None or np.dtype(kind).kind not in "biuf":
        raise ConfigError(str(path), key, "an input of numbers; this model cannot be optimized", tensor.datatype)
    if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, kind, "same_kind"):
        raise ConfigError(str(path), key, f"{np.dtype(kind).name}, as the model declares", array.dtype.name)
    shape = tensor.shape
    if array.ndim == len(shape) and shape:
        rows = shape[0] if shape[0] > 0 else (batch or 1)
        if batch is not None and batch != rows:
            raise ConfigError("--batch", "rows", f"{rows}, the fixed size of input '{tensor.name}'", str(batch))
        count = len(array) // rows
        array = array[: count * rows].reshape(count, rows, *array.shape[1:])
    if array.ndim != len(shape) + 1 or any(
        size not in (-1, given) for size, given in zip(shape, array.shape[1:], strict=False)
    ):
        declared = "[" + ", ".join("any" if size == -1 else str(size) for size in shape) + "]"
        expected = f"rows of the input's shape {declared}, or one entry of that shape for each run"
        raise ConfigError(str(path), key, expected, str(list(array.shape)))
    converted = np.ascontiguousarray(array, dtype=kind)
    if converted.dtype.kind == "f" and not np.isfinite(converted).all():
        raise ConfigError(str(path), key, "finite numbers", "NaN or infinity among them")
    return converted


def _rows(inputs: Sequence[FileTensor], arrays: dict[str, Any], runs: Runs) -> int:
    for each in inputs:
        if arrays[each.name].ndim == len(each.shape):
            return int(runs[each.name].shape[1])
    return 1


def _label_runs(path: Path, name: str, array: Any, count: int, rows: int) -> Any:
    if array.dtype.kind not in "iu":
        raise ConfigError(str(path), f"labels '{name}'", "integers, the classes", array.dtype.name)
    given = len(array) if array.ndim else "a single number"
    if array.ndim == 0 or len(array) < count * rows:
        raise ConfigError(str(path), f"labels '{name}'", f"one for each of {count * rows} rows", str(given))
    return array[: count * rows].reshape(count, rows, *array.shape[1:])


def _names(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
