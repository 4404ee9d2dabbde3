"""Scales of plots: where a value stands between 0 and 1, and which values are labelled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_TICKS = 5
#: A logarithmic scale with fewer labels is given 2 and 5 times the powers of ten, too.
_FEWEST_LABELS = 3
_SHORT_NAMES = ((50, "50 %"), (90, "90 %"), (99, "99 %"), (99.9, "99.9 %"), (99.99, "99.99 %"))


@dataclass(frozen=True, slots=True)
class Scale:
    place: Callable[[float], float]
    #: Value and label.
    ticks: tuple[tuple[float, str], ...]


def linear_scale(high: float, shown: Callable[[float], str]) -> Scale:
    """From 0 to at least ``high``."""
    step = _round_step(high / _TICKS) if high > 0 else 1.0
    top = step * max(1, math.ceil(high / step - 1e-9))
    ticks = tuple((step * number, shown(step * number)) for number in range(round(top / step) + 1))
    return Scale(lambda value: min(max(value / top, 0.0), 1.0), ticks)


def time_scale(seconds: float) -> Scale:
    """From 0 to ``seconds``, without a margin."""
    step = _round_step(seconds / _TICKS) if seconds > 0 else 1.0
    end = seconds if seconds > 0 else 1.0
    ticks = tuple((step * number, f"{step * number:g}") for number in range(math.floor(end / step + 1e-9) + 1))
    return Scale(lambda value: min(max(value / end, 0.0), 1.0), ticks)


def log_scale(low: float, high: float, shown: Callable[[float], str]) -> Scale:
    """Both above 0."""
    low, high = max(low, 1e-12), max(high, 1e-12)
    if high < low * 1.2:
        low, high = low / 1.2, high * 1.2
    start, end = math.log10(low), math.log10(high)
    powers = range(math.floor(start), math.ceil(end) + 1)
    values = [10.0**power for power in powers]
    ticks = [value for value in values if low <= value <= high]
    if len(ticks) < _FEWEST_LABELS:
        ticks = [value * factor for value in values for factor in (1, 2, 5) if low <= value * factor <= high]
    if len(ticks) < 2:
        ticks = [low, high]
    return Scale(
        lambda value: min(max((math.log10(max(value, 1e-12)) - start) / (end - start), 0.0), 1.0),
        tuple((value, shown(value)) for value in ticks),
    )


def percentile_scale(count: int) -> Scale:
    """Percents; each further nine takes as much room, up to the last that ``count`` values have, at most 99.99 %."""
    end = min(4.0, max(1.0, math.log10(max(count, 1))))

    def place(percent: float) -> float:
        return min(-math.log10(max(1 - percent / 100, 1e-12)) / end, 1.0)

    ticks = [(0.0, "0 %"), *_SHORT_NAMES]
    return Scale(place, tuple(tick for tick in ticks if -math.log10(1 - tick[0] / 100) <= end + 1e-9))


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10, … times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if step <= factor * power * (1 + 1e-9))
