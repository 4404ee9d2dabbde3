"""How long a step takes, learned from the steps that were measured.

A step's time is taken to be a fixed part plus one per row that decodes, per token of context that is read, and per
token of a prompt. The four are fitted by least squares with exponential forgetting; what a run of equal steps cannot
tell apart stays as it was. Estimates are cautious: a twentieth and twice the mean deviation are added. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from isochrone.worker.backends.generative import GenerationLimits

#: The weight of a measurement halves after some 140 steps.
_KEEP: Final = 0.995
#: How strongly the fit holds to what it was before, in measurements.
_INERTIA: Final = 0.01
#: A fit takes some 50 µs, so there is none after every step but the first ones.
_FIT_EVERY: Final = 8
_FIRST: Final = 64
#: An estimate is so much over what is expected: steps that fill their budget would otherwise be late by a hair.
_CAUTION: Final = 1.05
#: Weight of a new deviation in the mean.
_NEW: Final = 0.1
#: A step this many times over its estimate was interrupted: it counts as no more than that.
_OUTLIER: Final = 20


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The fitted parts of a step's time, in ns. All zero: nothing is known."""

    fixed: float = 0.0
    row: float = 0.0
    context: float = 0.0
    prefill: float = 0.0
    deviation: float = 0.0

    @property
    def is_known(self) -> bool:
        return self.fixed + self.row + self.context + self.prefill > 0

    def expected(self, rows: int, context: int, prefill: int) -> float:
        return self.fixed + self.row * rows + self.context * context + self.prefill * prefill

    def estimate(self, rows: int, context: int, prefill: int) -> int:
        """ns of a step, cautiously; 0: nothing is known."""
        return round(_CAUTION * self.expected(rows, context, prefill) + 2 * self.deviation) if self.is_known else 0

    def prefill_within(self, budget_ns: int, rows: int, context: int, most: int) -> int:
        """The most tokens of prompts, up to ``most``, with which a step takes no longer than the budget."""
        if not self.is_known:
            return most
        left = budget_ns - self.estimate(rows, context, 0)
        if left < 0:
            return 0
        # A token of a prompt is part of the context, too.
        each = _CAUTION * (self.prefill + self.context)
        return most if each * most <= left else int(left / each)


class StepTimes:
    """The measurements of one instance."""

    def __init__(self, limits: GenerationLimits) -> None:
        # Comparable sizes: otherwise the fit's hold on earlier values would depend on the units.
        self._scale = np.array([1.0, limits.rows, limits.rows * limits.context_tokens / 2, limits.prefill_tokens])
        self._products = np.zeros((4, 4))
        self._targets = np.zeros(4)
        self._weights = np.zeros(4)
        self._deviation = 0.0
        self._measured = 0
        self.costs = StepCosts()

    def observe(self, rows: int, context: int, prefill: int, ns: int) -> None:
        """A step took so long."""
        costs = self.costs
        expected = costs.expected(rows, context, prefill)
        if costs.is_known and self._measured >= _FIT_EVERY:
            ns = min(ns, round(_OUTLIER * expected))
            self._deviation += _NEW * (abs(ns - expected) - self._deviation)
        self._measured += 1
        features = np.array([1.0, rows, context, prefill]) / self._scale
        self._products = _KEEP * self._products + np.outer(features, features)
        self._targets = _KEEP * self._targets + features * ns
        if self._measured <= _FIRST or self._measured % _FIT_EVERY == 0:
            self._fit()

    def _fit(self) -> None:
        """Least squares with no negative part: those that come out negative are left out."""
        used = [0, 1, 2, 3]
        solution = np.zeros(4)
        while used:
            products = self._products[np.ix_(used, used)] + _INERTIA * np.eye(len(used))
            targets = self._targets[used] + _INERTIA * self._weights[used]
            found = np.linalg.solve(products, targets)
            worst = int(np.argmin(found))
            if found[worst] >= 0:
                solution[used] = found
                break
            del used[worst]
        self._weights = solution
        fixed, row, context, prefill = (solution / self._scale).tolist()
        self.costs = StepCosts(fixed, row, context, prefill, self._deviation)
