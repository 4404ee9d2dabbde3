"""How long a step takes, learned from the steps that were measured.

A step's time is taken to be a fixed part plus one per row that decodes, per token of context that is read, per token of
a prompt, and one for having a prompt at all. They are fitted by least squares with exponential forgetting; what a run
of equal steps cannot tell apart stays as it was. Pure.

Estimates are cautious, since a late step breaks the deadlines of all its sequences, and a sequence has many steps: one
late step of two hundred would break a third of the answers of eighty tokens. Steps with prompts, which could be smaller
than they are, leave a fifth of a deadline free, others a twentieth. More is left where steps deviate more: twice the
mean deviation, or nearly four standard deviations of the latest steps, whatever is more (``margins``).

A token is late for its client if it comes late from the device or if it takes longer than the one before to the
client's connection: what that varies by is left free of deadlines, too. The wait for a first token is the sum of many
steps that are not known when it is predicted: it is taken to be longer than predicted by as much as those of nearly all
of the latest requests were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from isochrone.worker.backends.generative import GenerationLimits
from isochrone.worker.generation.scheduling.margins import (
    CAUTION,
    PROMPT_CAUTION,
    DeliveryMargin,
    StepMargin,
    WaitMargin,
)

#: The weight of a measurement halves after some 140 steps.
_KEEP: Final = 0.995
#: How strongly the fit holds to what it was before, in measurements.
_INERTIA: Final = 0.01
#: A fit takes some 50 µs, so there is none after every step but the first ones.
_FIT_EVERY: Final = 8
_FIRST: Final = 64
#: Where the product of two features is in the upper half of their matrix. That of the last with itself is its product
#: with the first: it is 0 or 1.
_PLACES: Final = ((0, 1, 2, 3, 4), (1, 5, 6, 7, 8), (2, 6, 9, 10, 11), (3, 7, 10, 12, 3), (4, 8, 11, 3, 4))
#: A step this many times over its estimate was interrupted: it counts as no more than that.
_OUTLIER: Final = 20


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The fitted parts of a step's time, in ns. All zero: nothing is known."""

    fixed: float = 0.0
    row: float = 0.0
    context: float = 0.0
    prefill: float = 0.0
    #: Of a step with prompts, however short.
    prompt: float = 0.0
    #: What nearly all steps take, as a multiple of what is expected: those that only decode, and those with prompts.
    decoding: float = CAUTION
    prompting: float = PROMPT_CAUTION
    #: What nearly all waits for a first token take, as a multiple of what was predicted.
    waiting: float = CAUTION
    #: By how much longer than those before them tokens take from the step to the connections of their clients.
    delivery: float = 0.0

    @property
    def is_known(self) -> bool:
        return self.fixed + self.row + self.context + self.prefill + self.prompt > 0

    def expected(self, rows: int, context: int, prefill: int) -> float:
        expected = self.fixed + self.row * rows + self.context * context
        return expected + self.prefill * prefill + self.prompt if prefill else expected

    def estimate(self, rows: int, context: int, prefill: int) -> int:
        """ns of a step, cautiously; 0: nothing is known."""
        if not self.is_known:
            return 0
        factor = self.prompting if prefill else self.decoding
        return round(factor * self.expected(rows, context, prefill))

    def between_tokens(self, rows: int, context: int, prefill: int) -> int:
        """ns between the tokens of such a step and those before them at the clients' connections, cautiously."""
        return self.estimate(rows, context, prefill) + round(self.delivery)

    def without_margins(self) -> StepCosts:
        return replace(self, decoding=CAUTION, prompting=CAUTION, waiting=CAUTION, delivery=0.0)

    def prefill_within(self, budget_ns: int, rows: int, context: int, most: int) -> int:
        """The most tokens of prompts, up to ``most``, with which tokens reach the connections within the budget."""
        if not self.is_known:
            return most
        if self.between_tokens(rows, context, 0) > budget_ns:
            return 0
        # A token of a prompt is part of the context, too.
        each = self.prefill + self.context
        left = (budget_ns - self.delivery) / self.prompting - self.expected(rows, context, 0) - self.prompt
        if left < 0:
            return 0
        return most if each * most <= left else int(left / each)


class StepTimes:
    """The measurements of one instance."""

    def __init__(self, limits: GenerationLimits) -> None:
        # Comparable sizes: otherwise the fit's hold on earlier values would depend on the units.
        self._scale = (1.0, limits.rows, limits.rows * limits.context_tokens / 2, limits.prefill_tokens, 1.0)
        # Plain lists: of so few numbers, numpy's calls would take five times as long, after every step.
        #: Of the features, each with each: the upper half of a symmetric matrix, line by line.
        self._products = [0.0] * 13
        self._targets = [0.0] * 5
        self._weights = [0.0] * 5
        self._decoding = StepMargin(CAUTION)
        self._prompting = StepMargin(PROMPT_CAUTION)
        self._delivery = DeliveryMargin()
        self._waiting = WaitMargin()
        #: Of the latest step.
        self._expected = 0.0
        self._measured = 0
        self.costs = StepCosts()

    def observe(self, rows: int, context: int, prefill: int, ns: int) -> None:
        """A step took so long."""
        costs = self.costs
        expected = costs.expected(rows, context, prefill)
        if expected > 0 and self._measured >= _FIT_EVERY:
            ns = min(ns, round(_OUTLIER * expected))
            latest, other = (self._prompting, self._decoding) if prefill else (self._decoding, self._prompting)
            latest.note(ns / expected)
            other.fade()
            self._expected = expected
        self._delivery.fade()
        self._waiting.fade()
        self._measured += 1
        _, row_scale, context_scale, prefill_scale, _ = self._scale
        two, three, four = rows / row_scale, context / context_scale, prefill / prefill_scale
        five = 1.0 if prefill else 0.0
        a, b, c, d, e, f, g, h, i, j, k, m, n = self._products
        # Written out: a loop would take three times as long, after every step.
        self._products = [
            _KEEP * a + 1.0,
            _KEEP * b + two,
            _KEEP * c + three,
            _KEEP * d + four,
            _KEEP * e + five,
            _KEEP * f + two * two,
            _KEEP * g + two * three,
            _KEEP * h + two * four,
            _KEEP * i + two * five,
            _KEEP * j + three * three,
            _KEEP * k + three * four,
            _KEEP * m + three * five,
            _KEEP * n + four * four,
        ]
        a, b, c, d, e = self._targets
        self._targets = [
            _KEEP * a + ns,
            _KEEP * b + two * ns,
            _KEEP * c + three * ns,
            _KEEP * d + four * ns,
            _KEEP * e + five * ns,
        ]
        if self._measured <= _FIRST or self._measured % _FIT_EVERY == 0:
            self._fit()

    def observe_delivery(self, ns: int) -> None:
        """The tokens of a step took so long from its end to the connections of their clients."""
        self._delivery.note(ns, self._expected)

    def observe_wait(self, predicted_ns: int, ns: int) -> None:
        """A request waited so long for its first token, or has waited so long in vain."""
        if predicted_ns > 0:
            self._waiting.note(ns / predicted_ns)

    def _fit(self) -> None:
        """Least squares with no negative part: those that come out negative are left out."""
        used = [0, 1, 2, 3, 4]
        solution = [0.0] * 5
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
        fixed, row, context, prefill, prompt = (
            value / scale for value, scale in zip(solution, self._scale, strict=True)
        )
        self.costs = StepCosts(
            fixed,
            row,
            context,
            prefill,
            prompt,
            self._decoding.factor,
            self._prompting.factor,
            self._waiting.factor,
            self._delivery.ns,
        )


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
