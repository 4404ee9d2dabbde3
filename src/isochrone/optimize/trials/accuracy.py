"""How far a candidate's outputs are from those of the float model. Pure.

What the limit on accuracy applies to (``Difference.drop``) depends on the task:

- classify with labels: the top-1 accuracy of the float model minus that of the candidate;
- classify without: the share of rows whose highest score is of another class than the float model's;
- regress: the relative error, ‖difference‖ / ‖float output‖ in L2, of the worst output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

Outputs = Mapping[str, Any]


class Task(StrEnum):
    CLASSIFY = "classify"
    REGRESS = "regress"


#: What ``Difference.drop`` is, for reports: by task, and whether there are labels.
MEASURES = {
    (Task.CLASSIFY, True): "drop of top-1 accuracy",
    (Task.CLASSIFY, False): "share of rows with another top-1 class than the float model's",
    (Task.REGRESS, True): "relative L2 error",
    (Task.REGRESS, False): "relative L2 error",
}


@dataclass(frozen=True, slots=True)
class Difference:
    relative_error: float
    drop: float
    accuracy: float | None
    """The candidate's top-1 accuracy; None without labels."""


def compare(
    reference: Sequence[Outputs], found: Sequence[Outputs], task: Task, labels: Sequence[Any] | None = None
) -> Difference:
    """``reference`` and ``found``: the outputs of the same runs. Outputs that are not finite differ without bound."""
    error = max((_relative_error(reference, found, name) for name in reference[0]), default=0.0)
    if task is Task.REGRESS:
        return Difference(error, error, None)
    name = scores_output(reference[0])
    expected, given = _classes(reference, name), _classes(found, name)
    if not math.isfinite(error):
        return Difference(error, math.inf, None)
    if labels is None:
        return Difference(error, float(np.mean(expected != given)), None)
    true = np.concatenate([np.asarray(each).reshape(-1) for each in labels])
    _check_labels(true, expected.size, reference[0][name])
    accuracy = float(np.mean(given == true))
    return Difference(error, float(np.mean(expected == true)) - accuracy, accuracy)


def check_reference(outputs: Sequence[Outputs]) -> None:
    """Raises if outputs of the float model are not finite: no difference from them is."""
    for name in outputs[0]:
        if any(run[name].dtype.kind == "f" and not np.isfinite(run[name]).all() for run in outputs):
            raise ValueError(f"output '{name}' has NaN or infinity among its values, so no error can be measured")


def _check_labels(labels: Any, rows: int, scores: Any) -> None:
    """A label that no output can equal would make every candidate as wrong as the float model."""
    if labels.size != rows:
        raise ValueError(f"labels: expected one for each of {rows} rows of scores, given {labels.size}")
    classes = scores.shape[-1] if scores.dtype.kind == "f" else math.inf
    outside = labels[(labels < 0) | (labels >= classes)]
    if outside.size:
        last = f" to {classes - 1}, the classes of the model's scores" if math.isfinite(classes) else " or above"
        raise ValueError(f"labels: expected 0{last}, given {int(outside[0])}")


def scores_output(outputs: Outputs) -> str:
    """The output with class scores: the first float one with several values in its last dimension, else the first of
    integers, which are classes."""
    for name, array in outputs.items():
        if array.dtype.kind == "f" and array.ndim >= 1 and array.shape[-1] > 1:
            return name
    for name, array in outputs.items():
        if array.dtype.kind in "iu":
            return name
    raise ValueError("no output has class scores; --task regress compares numbers")


def _classes(runs: Sequence[Outputs], name: str) -> Any:
    found = [run[name] for run in runs]
    if found[0].dtype.kind == "f":
        return np.concatenate([np.argmax(array, axis=-1).reshape(-1) for array in found])
    return np.concatenate([array.reshape(-1) for array in found])


def _relative_error(reference: Sequence[Outputs], found: Sequence[Outputs], name: str) -> float:
    different = total = 0.0
    for expected, given in zip(reference, found, strict=True):
        if expected[name].shape != given[name].shape:
            return math.inf
        if expected[name].dtype.kind not in "fiub":
            different += float(np.sum(expected[name] != given[name]))
            total += expected[name].size
            continue
        exact = expected[name].astype(np.float64)
        different += float(np.sum(np.square(given[name].astype(np.float64) - exact)))
        total += float(np.sum(np.square(exact)))
    if not math.isfinite(different):
        return math.inf
    if total == 0.0:
        return 0.0 if different == 0.0 else math.inf
    return math.sqrt(different / total)
