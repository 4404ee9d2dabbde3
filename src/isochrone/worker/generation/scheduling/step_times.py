"""How long a step takes, learned from the steps that were measured.

A step's time is taken to be a fixed part plus one per row that decodes, per token of context that is read, and per
token of a prompt. The four are fitted by least squares with exponential forgetting; what a run of equal steps cannot
tell apart stays as it was. Estimates are cautious: a twentieth and twice the mean deviation are added, or what one step
of two hundred exceeds, if that is more. Steps with prompts and steps without have margins of their own. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

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
#: The share of steps that may exceed ``Margin.factor``, and how far a step moves it. It is held below the highest.
_EXCEEDING: Final = 0.005
_MOVE: Final = 0.1
_HIGHEST_FACTOR: Final = 3.0
#: Weight of a new deviation in the mean.
_NEW: Final = 0.1
#: Where the product of two features is in the upper half of their matrix.
_PLACES: Final = ((0, 1, 2, 3), (1, 4, 5, 6), (2, 5, 7, 8), (3, 6, 8, 9))
#: A step this many times over its estimate was interrupted: it counts as no more than that.
_OUTLIER: Final = 20


class Margin(NamedTuple):
    """How far steps are from what is expected of them."""

    #: The mean, in ns.
    deviation: float = 0.0
    #: What nearly all steps take, as a multiple of what is expected.
    factor: float = _CAUTION

    def over(self, expected: float) -> float:
        return max(_CAUTION * expected + 2 * self.deviation, self.factor * expected)

    def under(self, budget_ns: float) -> float:
        """The most that may be expected of a step, for which the budget is enough."""
        return min((budget_ns - 2 * self.deviation) / _CAUTION, budget_ns / self.factor)


_NO_MARGIN = Margin()


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The fitted parts of a step's time, in ns. All zero: nothing is known."""

    fixed: float = 0.0
    row: float = 0.0
    context: float = 0.0
    prefill: float = 0.0
    #: Of steps that only decode, and of those with prompts.
    decoding: Margin = _NO_MARGIN
    prompting: Margin = _NO_MARGIN

    @property
    def is_known(self) -> bool:
        return self.fixed + self.row + self.context + self.prefill > 0

    def expected(self, rows: int, context: int, prefill: int) -> float:
        return self.fixed + self.row * rows + self.context * context + self.prefill * prefill

    def estimate(self, rows: int, context: int, prefill: int) -> int:
        """ns of a step, cautiously; 0: nothing is known."""
        if not self.is_known:
            return 0
        margin = self.prompting if prefill else self.decoding
        return round(margin.over(self.expected(rows, context, prefill)))

    def without_margins(self) -> StepCosts:
        return replace(self, decoding=_NO_MARGIN, prompting=_NO_MARGIN)

    def prefill_within(self, budget_ns: int, rows: int, context: int, most: int) -> int:
        """The most tokens of prompts, up to ``most``, with which a step takes no longer than the budget."""
        if not self.is_known:
            return most
        if self.estimate(rows, context, 0) > budget_ns:
            return 0
        # A token of a prompt is part of the context, too.
        each = self.prefill + self.context
        left = self.prompting.under(budget_ns) - self.expected(rows, context, 0)
        if left < 0:
            return 0
        return most if each * most <= left else int(left / each)


class StepTimes:
    """The measurements of one instance."""

    def __init__(self, limits: GenerationLimits) -> None:
        # Comparable sizes: otherwise the fit's hold on earlier values would depend on the units.
        self._scale = (1.0, limits.rows, limits.rows * limits.context_tokens / 2, limits.prefill_tokens)
        # Plain lists: of so few numbers, numpy's calls would take five times as long, after every step.
        #: Of the features, each with each: the upper half of a symmetric matrix, line by line.
        self._products = [0.0] * 10
        self._targets = [0.0] * 4
        self._weights = [0.0] * 4
        #: Of steps that only decode, and of those with prompts.
        self._margins = [_NO_MARGIN, _NO_MARGIN]
        self._measured = 0
        self.costs = StepCosts()

    def observe(self, rows: int, context: int, prefill: int, ns: int) -> None:
        """A step took so long."""
        costs = self.costs
        expected = costs.expected(rows, context, prefill)
        if costs.is_known and self._measured >= _FIT_EVERY:
            ns = min(ns, round(_OUTLIER * expected))
            self._note(ns, expected, bool(prefill))
        self._measured += 1
        _, row_scale, context_scale, prefill_scale = self._scale
        two, three, four = rows / row_scale, context / context_scale, prefill / prefill_scale
        a, b, c, d, e, f, g, h, i, j = self._products
        # Written out: a loop would take three times as long, after every step.
        self._products = [
            _KEEP * a + 1.0,
            _KEEP * b + two,
            _KEEP * c + three,
            _KEEP * d + four,
            _KEEP * e + two * two,
            _KEEP * f + two * three,
            _KEEP * g + two * four,
            _KEEP * h + three * three,
            _KEEP * i + three * four,
            _KEEP * j + four * four,
        ]
        a, b, c, d = self._targets
        self._targets = [_KEEP * a + ns, _KEEP * b + two * ns, _KEEP * c + three * ns, _KEEP * d + four * ns]
        if self._measured <= _FIRST or self._measured % _FIT_EVERY == 0:
            self._fit()

    def _note(self, ns: int, expected: float, has_prompt: bool) -> None:
        """Moves the factor up if the step exceeded it, and down otherwise: it rests where one of two hundred does."""
        deviation, factor = self._margins[has_prompt]
        change = 1 - _EXCEEDING if ns > factor * expected else -_EXCEEDING
        self._margins[has_prompt] = Margin(
            deviation + _NEW * (abs(ns - expected) - deviation),
            min(_HIGHEST_FACTOR, max(_CAUTION, factor * (1 + _MOVE * change))),
        )

    def _fit(self) -> None:
        """Least squares with no negative part: those that come out negative are left out."""
        used = [0, 1, 2, 3]
        solution = [0.0] * 4
        while used:
            products = [[self._products[_PLACES[line][column]] for column in used] for line in used]
            for place in range(len(used)):
                products[place][place] += _INERTIA
            targets = [self._targets[line] + _INERTIA * self._weights[line] for line in used]
            found = _solved(products, targets)
            worst = min(range(len(used)), key=found.__getitem__)
            if found[worst] >= 0:
                for line, value in zip(used, found, strict=True):
                    solution[line] = value
                break
            del used[worst]
        self._weights = solution
        fixed, row, context, prefill = (value / scale for value, scale in zip(solution, self._scale, strict=True))
        self.costs = StepCosts(fixed, row, context, prefill, *self._margins)


def _solved(matrix: list[list[float]], targets: list[float]) -> list[float]:
    """The solution of equations with a positive definite matrix, by elimination; it changes what it is given."""
    size = len(targets)
    for pivot in range(size):
        line = matrix[pivot]
        for below in range(pivot + 1, size):
            share = matrix[below][pivot] / line[pivot]
            if share:
                matrix[below] = [value - share * above for value, above in zip(matrix[below], line, strict=True)]
                targets[below] -= share * targets[pivot]
    solution = [0.0] * size
    for line_number in reversed(range(size)):
        line = matrix[line_number]
        known = sum(line[column] * solution[column] for column in range(line_number + 1, size))
        solution[line_number] = (targets[line_number] - known) / line[line_number]
    return solution
