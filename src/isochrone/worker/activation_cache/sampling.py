"""Measures the error that reuse causes: which hits are computed nevertheless, and when their error is an alarm. Pure.

A sampled hit is answered with what was computed, and does not move the key frame: its error is exactly that of the
answer which reuse would have given. While the alarm is raised nothing is reused, so every hit is a sample, at the cost
of the comparison alone; the alarm ends when those samples are well inside the budget again.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors

#: The estimate is the mean of the first samples, then weighs a new one by 1/16: one answer that is entirely wrong
#: alone is 6 %.
_WEIGHT_OF: Final = 16
#: The alarm ends at this share of the budget, so that it does not end and begin again with every sample.
_RECOVERED: Final = 0.5
#: The error of an answer that is entirely wrong, and the largest that counts.
WRONG: Final = 1.0


def output_error(reused: Tensors, computed: Tensors) -> float:
    """The relative error (L2) of that output which differs most; at most 1."""
    if reused.keys() != computed.keys():
        return WRONG
    return max((_error(reused[name], computed[name]) for name in computed), default=0.0)


def _error(reused: Tensor, computed: Tensor) -> float:
    if reused.shape != computed.shape or reused.dtype != computed.dtype:
        return WRONG
    if computed.dtype.hasobject or computed.dtype == np.bool_:
        # Of texts, the share of elements that differ.
        return float(np.mean(reused != computed)) if computed.size else 0.0
    exact = _float64(computed)
    difference = float(np.linalg.norm(_float64(reused) - exact))
    norm = float(np.linalg.norm(exact))
    if not np.isfinite(difference) or not np.isfinite(norm):
        return 0.0 if np.array_equal(reused, computed, equal_nan=True) else WRONG
    if norm == 0.0:
        return 0.0 if difference == 0.0 else WRONG
    return min(WRONG, difference / norm)


def _float64(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    with np.errstate(all="ignore"):
        return tensor.astype(np.float64).reshape(-1)


class ErrorMonitor:
    """The error estimate of one model version."""

    __slots__ = ("_budget", "_random", "_share", "estimate", "is_alarmed", "largest", "over_budget", "samples")

    def __init__(self, budget: float, share: float, seed: str) -> None:
        """``seed``: the version's digest, so that equal requests sample equal hits."""
        self._budget = budget
        self._share = share
        self._random = Random(seed)
        self.estimate = 0.0
        self.largest = 0.0
        self.samples = 0
        #: Samples that exceeded the budget each by itself.
        self.over_budget = 0
        self.is_alarmed = False

    def takes_sample(self) -> bool:
        """Whether to compute a hit."""
        return self.is_alarmed or (self._share > 0 and self._random.random() < self._share)

    def record(self, error: float) -> bool:
        """Adds a sample; whether the alarm has begun or ended with it."""
        self.samples += 1
        self.largest = max(self.largest, error)
        self.over_budget += error > self._budget
        self.estimate += (error - self.estimate) / min(self.samples, _WEIGHT_OF)
        was_alarmed = self.is_alarmed
        if was_alarmed:
            self.is_alarmed = self.estimate > self._budget * _RECOVERED
        else:
            self.is_alarmed = self.estimate > self._budget
        return self.is_alarmed != was_alarmed
