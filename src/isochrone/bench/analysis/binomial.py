"""Exact binomial bounds: the ranks that enclose a percentile, and the interval of a share. No assumption on latencies.

Sums run over the part of the distribution that holds all but less than 1e-30 of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

#: The probability with which an interval encloses the true value.
CONFIDENCE = 0.95

_DEVIATIONS = 12
_MARGIN = 40
_BISECTIONS = 50


@lru_cache(maxsize=256)
def rank_bounds(count: int, share: float, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """The ranks, from 1, of the two of ``count`` sorted values that enclose the quantile ``share``.

    Rank 0: no value is low enough to be a lower bound. Rank ``count + 1``: none is high enough to be an upper bound.
    """
    # The number of values up to the quantile is binomial, whatever the distribution of values is.
    first, cumulative = _cumulative(count, share)
    tail = (1 - confidence) / 2
    low = first + int(np.searchsorted(cumulative, tail, side="right"))
    high = first + int(np.searchsorted(cumulative, 1 - tail, side="left")) + 1
    return low, min(high, count + 1)


@lru_cache(maxsize=256)
def share_bounds(successes: float, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of Clopper and Pearson; the wider of two if ``successes`` is between two integers."""
    if trials <= 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    fewest, most = math.floor(successes), math.ceil(successes)
    low = _solve(lambda chance: 1 - _at_most(fewest - 1, trials, chance) < tail) if fewest > 0 else 0.0
    high = _solve(lambda chance: _at_most(most, trials, chance) > tail) if most < trials else 1.0
    return low, high


def _at_most(successes: int, trials: int, chance: float) -> float:
    first, cumulative = _cumulative(trials, chance)
    index = successes - first
    if index < 0:
        return 0.0
    return float(cumulative[index]) if index < len(cumulative) else 1.0


def _solve(below: Callable[[float], bool]) -> float:
    """The chance at which ``below`` turns false."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if below(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _cumulative(trials: int, chance: float) -> tuple[int, NDArray[np.float64]]:
    """The first number of successes that has any weight, and the probabilities of at most so many, and of more."""
    reach = _DEVIATIONS * math.sqrt(trials * chance * (1 - chance)) + _MARGIN
    first = max(0, int(trials * chance - reach))
    last = min(trials, int(trials * chance + reach))
    successes = np.arange(first, last, dtype=np.float64)
    steps = np.log((trials - successes) / (successes + 1)) + (math.log(chance) - math.log1p(-chance))
    logarithms = np.concatenate(([0.0], np.cumsum(steps)))
    weights = np.exp(logarithms - logarithms.max())
    cumulative = np.cumsum(weights)
    return first, np.minimum(cumulative / cumulative[-1], 1.0)
