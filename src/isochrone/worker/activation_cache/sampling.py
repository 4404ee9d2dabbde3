"""Measures the error that reuse causes: which hits are computed nevertheless, and when their error is an alarm. Pure.

A sampled hit is answered with what was computed, and does not move the key frame: its error is exactly that of the
answer which reuse would have given. A sample over the budget raises the share of samples for a while, so that the
estimate follows a change within seconds. While the alarm is raised nothing is reused, so every hit is a sample, at
the cost of the comparison alone; the alarm ends when those samples are inside the budget again.

Errors are computed on the loop's thread, so of a part of large outputs, and without BLAS: its threads hold a call of
more than 10,000 elements for 16 ms and more while other work has the cores.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors

#: Elements of one answer that are compared, over all of its outputs.
COMPARED_ELEMENTS: Final = 65_536
#: The estimate is the mean of the first samples, then weighs a new one by 1/16: one answer that is entirely wrong
#: alone is 6 %.
_WEIGHT_OF: Final = 16
#: Samples before the first judgement: one wrong answer among few is no estimate.
JUDGED_SAMPLES: Final = 8
#: The share of samples after one over the budget, and the number of samples for which it lasts. They are as many as the
#: estimate needs to follow, and few enough that a model with single errors over the budget keeps most of its hits.
_RAISED_SHARE: Final = 0.25
_RAISED_SAMPLES: Final = 16
#: While the alarm is raised, the mean of so many samples is judged, and ends it below this share of the budget: the
#: alarm shall not end and begin again with every sample.
ALARM_SAMPLES: Final = 64
_RECOVERED: Final = 0.8
#: The error of an answer that is entirely wrong, and the largest that counts.
WRONG: Final = 1.0

_Array = np.ndarray[Any, Any]


def output_error(reused: Tensors, computed: Tensors) -> float:
    """The error of that output which differs most; at most 1.

    Of numbers with a fraction, the relative error (L2); of other outputs, the share of elements that differ.
    """
    if reused.keys() != computed.keys():
        return WRONG
    most = max(1, COMPARED_ELEMENTS // max(1, len(computed)))
    with np.errstate(all="ignore"):
        return max((_error(reused[name], computed[name], most) for name in computed), default=0.0)


def _error(reused: Tensor, computed: Tensor, most: int) -> float:
    if reused.shape != computed.shape or reused.dtype != computed.dtype:
        return WRONG
    if not computed.size:
        return 0.0
    given, exact = _spaced(reused, most), _spaced(computed, most)
    if computed.dtype.hasobject or computed.dtype.kind in "biu":
        return float(np.count_nonzero(given != exact)) / exact.size
    if computed.dtype != np.float64:
        given, exact = given.astype(np.float32), exact.astype(np.float32)
    return _relative_error(given, exact)


def _spaced(tensor: Tensor, most: int) -> _Array:
    """At most so many elements, evenly spaced over a tensor."""
    # An odd step: an even one would see a part of the channels alone where channels are the last axis.
    step = 1 if tensor.size <= most else -(-tensor.size // most) | 1
    # A reshape of other arrays would copy all of their elements.
    spaced: _Array = tensor.reshape(-1)[::step] if tensor.flags.c_contiguous else tensor.flat[::step]
    return spaced


def _relative_error(given: _Array, exact: _Array) -> float:
    """The relative error (L2) over finite elements; infinities and NaN must be in the same places."""
    finite = np.isfinite(given)
    finite &= np.isfinite(exact)
    if not finite.all():
        others = ~finite
        if not np.array_equal(given[others], exact[others], equal_nan=True):
            return WRONG
        given, exact = given[finite], exact[finite]
        if not exact.size:
            return 0.0
    # In parts of the largest value, whose squares cannot overflow.
    scale = np.abs(exact).max()
    difference = given - exact
    if scale == 0:
        return WRONG if difference.any() else 0.0
    difference /= scale
    exact = exact / scale
    error = float(np.sqrt(_sum_of_squares(difference) / _sum_of_squares(exact)))
    return min(WRONG, error)


def _sum_of_squares(values: _Array) -> Any:
    # Not dot, norm or einsum, which call BLAS.
    return np.add.reduce(values * values)


class ErrorMonitor:
    """The error estimate of one model version."""

    __slots__ = (
        "_alarm_samples",
        "_alarm_sum",
        "_budget",
        "_raised_left",
        "_random",
        "_share",
        "estimate",
        "is_alarmed",
        "largest",
        "over_budget",
        "samples",
    )

    def __init__(self, budget: float, share: float, seed: str) -> None:
        """``seed``: the version's digest, so that equal requests sample equal hits."""
        self._budget = budget
        self._share = share
        self._random = Random(seed)
        #: Samples of the raised share that are still to come.
        self._raised_left = 0
        #: Samples of the alarm since it was last judged, and the sum of their errors.
        self._alarm_samples = 0
        self._alarm_sum = 0.0
        self.estimate = 0.0
        self.largest = 0.0
        self.samples = 0
        #: Samples that exceeded the budget each by itself.
        self.over_budget = 0
        self.is_alarmed = False

    def takes_sample(self) -> bool:
        """Whether to compute a hit."""
        if self.is_alarmed:
            return True
        share = max(self._share, _RAISED_SHARE) if self._share and self._raised_left else self._share
        return share > 0 and self._random.random() < share

    def record(self, error: float) -> bool:
        """Adds a sample; whether the alarm has begun or ended with it."""
        self.samples += 1
        self.largest = max(self.largest, error)
        self.over_budget += error > self._budget
        self.estimate += (error - self.estimate) / min(self.samples, _WEIGHT_OF)
        return self._judge_alarm(error) if self.is_alarmed else self._judge(error)

    def _judge(self, error: float) -> bool:
        if self._raised_left:
            self._raised_left -= 1
        elif error > self._budget:
            self._raised_left = _RAISED_SAMPLES
        self.is_alarmed = self.samples >= JUDGED_SAMPLES and self.estimate > self._budget
        return self.is_alarmed

    def _judge_alarm(self, error: float) -> bool:
        self._alarm_samples += 1
        self._alarm_sum += error
        if self._alarm_samples < ALARM_SAMPLES:
            return False
        mean = self._alarm_sum / self._alarm_samples
        self._alarm_samples, self._alarm_sum = 0, 0.0
        if mean > self._budget * _RECOVERED:
            return False
        # The estimate may still hold what the alarm was raised for.
        self.estimate = mean
        self._raised_left = 0
        self.is_alarmed = False
        return True
