"""A column of durations in order of time, with its percentiles and shares and their confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isochrone.bench.analysis.binomial import rank_bounds, share_bounds
from isochrone.bench.analysis.dispersion import effective_count


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value, and the interval that encloses the true one with the given confidence."""

    value: float
    low: float
    #: Infinite: there are too few requests for an upper bound.
    high: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """How many requests were over a limit, of how many, worth how many independent ones. It adds up over runs."""

    over: int
    total: int
    effective: int

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.over + other.over, self.total + other.total, self.effective + other.effective)

    @property
    def share(self) -> Estimate:
        if not self.total:
            return Estimate(0.0, 0.0, 1.0)
        share = self.over / self.total
        successes = self.over if self.effective == self.total else share * self.effective
        low, high = share_bounds(successes, self.effective)
        return Estimate(share, min(low, share), max(high, share))


def evidence_of(flags: NDArray[np.bool_]) -> Evidence:
    """``flags``: in order of time."""
    return Evidence(int(np.count_nonzero(flags)), len(flags), effective_count(flags))


class Distribution:
    """Durations in ns, in order of time."""

    def __init__(self, values: NDArray[np.int64]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def sorted(self) -> NDArray[np.int64]:
        return np.sort(self.values)

    @property
    def highest(self) -> int:
        return int(self.sorted[-1]) if len(self) else 0

    def percentile(self, percent: float) -> Estimate | None:
        """The smallest value that ``percent`` of all do not exceed; None without values."""
        count = len(self)
        if not count:
            return None
        share = percent / 100
        # Less the rounding of the product: 99.9 % of 3,000 are 2,997 values.
        rank = max(1, math.ceil(share * count - 1e-6))
        value = float(self.sorted[rank - 1])
        effective = effective_count(self.values > value)
        low_rank, high_rank = rank_bounds(effective, share)
        low = float(self.sorted[max(1, low_rank * count // effective) - 1]) if low_rank else 0.0
        high = (
            float(self.sorted[min(count, math.ceil(high_rank * count / effective)) - 1])
            if high_rank <= effective
            else math.inf
        )
        return Estimate(value, min(low, value), max(high, value))

    def over(self, limit_ns: int, *, allow_equal: bool) -> Evidence:
        """How many exceed the limit, or reach it unless ``allow_equal``."""
        return evidence_of(self.values > limit_ns if allow_equal else self.values >= limit_ns)
