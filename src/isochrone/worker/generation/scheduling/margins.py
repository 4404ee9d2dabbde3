"""By how much the latest steps, deliveries and waits were longer than expected: what estimates leave free. Pure.

Each keeps a window of the latest values, which are also forgotten with steps that add none: otherwise a slow time could
refuse for good the requests that would show that it is over.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import nlargest
from typing import Final

from isochrone.clock import MILLISECOND

#: An estimate is at least so many times what is expected: steps that only decode, and steps with prompts.
CAUTION: Final = 1.05
PROMPT_CAUTION: Final = 1.25
#: With fewer values than this, nothing is known.
_LEAST_VALUES: Final = 8

#: Steps and deliveries in their windows.
_STEPS: Final = 512
#: A margin is so many standard deviations, but no more than so many times the largest value.
_SPREADS: Final = 4.0
_BEYOND: Final = 1.1
#: A step that took more than so many times what was expected was a stall, which no margin could cover.
_STALL: Final = 3.0
#: With a step that adds nothing, the mean deviation falls by this factor; with so many, a value is forgotten.
_FADING: Final = 0.99
_FADES: Final = 4
#: Weight of a new deviation in the mean.
_NEW: Final = 0.1

#: A delivery that took so many ns more than the one before was a stall, unless steps take a third of it or more.
_LEAST_STALL_NS: Final = 30 * MILLISECOND
#: So many of the largest growths count as exceptions.
_EXCEPTIONS: Final = 3

#: Waits in their window; standard deviations; the largest factor; steps after which one is forgotten.
_WAITS: Final = 128
_WAIT_SPREADS: Final = 3.0
_MOST_WAITING: Final = 2.0
_WAIT_FADES: Final = 16


class _Window:
    """The latest values, their sum and that of their squares."""

    __slots__ = ("_most", "_squares", "_sum", "values")

    def __init__(self, most: int) -> None:
        self._most = most
        self.values: deque[float] = deque()
        self._sum = self._squares = 0.0

    def add(self, value: float) -> None:
        self.values.append(value)
        self._sum += value
        self._squares += value * value
        if len(self.values) > self._most:
            self.forget_oldest()

    def forget_oldest(self) -> None:
        if self.values:
            oldest = self.values.popleft()
            self._sum -= oldest
            self._squares -= oldest * oldest

    @property
    def is_known(self) -> bool:
        return len(self.values) >= _LEAST_VALUES

    def beyond_mean(self, spreads: float) -> float:
        """The mean, and so many standard deviations more."""
        count = len(self.values)
        mean = self._sum / count
        return mean + spreads * math.sqrt(max(0.0, self._squares / count - mean * mean))

    @property
    def root_mean_square(self) -> float:
        return math.sqrt(max(0.0, self._squares / len(self.values)))


class StepMargin:
    """How far the latest steps of one kind were from what was expected of them."""

    __slots__ = ("_fades", "_least", "_mean", "_ratios")

    def __init__(self, least: float) -> None:
        self._least = least
        #: The mean deviation, as a share of what is expected. It follows the steps quickly.
        self._mean = 0.0
        #: Time over expected time, without stalls.
        self._ratios = _Window(_STEPS)
        self._fades = 0

    def note(self, ratio: float) -> None:
        """A step took so many times what was expected."""
        self._mean += _NEW * (abs(min(ratio, _STALL) - 1) - self._mean)
        if ratio <= _STALL:
            self._ratios.add(ratio)

    def fade(self) -> None:
        """A step of the other kind."""
        self._mean *= _FADING
        self._fades += 1
        if self._fades % _FADES == 0:
            self._ratios.forget_oldest()

    @property
    def factor(self) -> float:
        factor = min(max(self._least, CAUTION + 2 * self._mean), _STALL)
        if not self._ratios.is_known:
            return factor
        slowest, second = nlargest(2, self._ratios.values)
        return max(factor, second, min(self._ratios.beyond_mean(_SPREADS), _BEYOND * slowest, _STALL))


class DeliveryMargin:
    """By how much longer than those before them tokens took from a step to the connections of their clients."""

    __slots__ = ("_before", "_grown", "_steps")

    def __init__(self) -> None:
        self._before = 0
        #: ns that each took more than the one before, 0 if it took less; without stalls.
        self._grown = _Window(_STEPS)
        #: Since the latest of them.
        self._steps = 0

    def note(self, ns: int, step_ns: float) -> None:
        """The tokens of a step took so long; ``step_ns``: what steps are expected to take."""
        grown = max(0, ns - self._before)
        if self._before and grown <= max(_LEAST_STALL_NS, _STALL * step_ns):
            self._grown.add(grown)
        self._before = ns
        self._steps = 0

    def fade(self) -> None:
        """A step."""
        self._steps += 1
        if self._steps % _FADES == 0:
            self._grown.forget_oldest()

    @property
    def ns(self) -> float:
        if not self._grown.is_known:
            return 0.0
        largest = nlargest(_EXCEPTIONS + 1, self._grown.values)
        return max(largest[-1], min(_SPREADS * self._grown.root_mean_square, _BEYOND * largest[0]))


class WaitMargin:
    """How long the latest requests waited for their first tokens, as multiples of what was predicted."""

    __slots__ = ("_ratios", "_steps")

    def __init__(self) -> None:
        self._ratios = _Window(_WAITS)
        self._steps = 0

    def note(self, ratio: float) -> None:
        self._ratios.add(min(ratio, _STALL))

    def fade(self) -> None:
        """A step."""
        self._steps += 1
        if self._steps % _WAIT_FADES == 0:
            self._ratios.forget_oldest()

    @property
    def factor(self) -> float:
        if not self._ratios.is_known:
            return CAUTION
        longest = min(self._ratios.beyond_mean(_WAIT_SPREADS), max(self._ratios.values))
        return min(max(CAUTION, longest), _MOST_WAITING)
