"""The time of one run, from repeated runs: they end as soon as the median is known closely enough.

Two models are compared by runs in turns: a machine that other programs use is slower at one time than at another.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isochrone.clock import SECOND, now_ns

#: Of the normal distribution: 95 % lie within so many standard deviations.
_Z = 1.96
#: The first runs allocate, and their caches are cold.
WARM_RUNS = 2
LEAST_RUNS = 8
#: Runs of one model before it is the other one's turn, after one that finds the other one's data in the caches.
_BLOCK = 5
#: Of each model, of a comparison in turns.
LEAST_TURN_RUNS = _BLOCK + 1


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds of one run. ``low`` and ``high`` bound the median with 95 % confidence."""

    median: float
    low: float
    high: float
    p99: float
    runs: int

    @property
    def milliseconds(self) -> float:
        return self.median / 1e6

    @property
    def spread(self) -> float:
        """Half the width of the confidence interval as a share of the median."""
        return (self.high - self.low) / (2 * self.median) if self.median else 0.0


def timing_of(samples: Sequence[float]) -> Timing:
    """From at least one sample. The interval needs no assumption on the distribution: it is one of order statistics."""
    ordered = sorted(samples)
    count = len(ordered)
    reach = _Z * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach))
    middle = ordered[count // 2] if count % 2 else (ordered[count // 2 - 1] + ordered[count // 2]) / 2
    p99 = ordered[min(count - 1, math.ceil(0.99 * count) - 1)]
    return Timing(middle, ordered[low], ordered[high], p99, count)


def measure(
    run: Callable[[], object],
    *,
    seconds: float,
    precision: float = 0.02,
    warm_runs: int = WARM_RUNS,
    clock: Callable[[], int] = now_ns,
) -> Timing:
    """Repeats ``run`` until the median is known to ``precision`` (a share of it), or for about ``seconds``.

    A run that outlasts ``seconds`` is completed, and is a sample. An error of ``run`` is the caller's.
    """
    for _ in range(warm_runs):
        run()
    ends = clock() + round(seconds * SECOND)
    samples: list[float] = []
    look_at = LEAST_RUNS
    while True:
        began = clock()
        run()
        ended = clock()
        samples.append(ended - began)
        if ended >= ends:
            return timing_of(samples)
        if len(samples) == look_at:
            found = timing_of(samples)
            if found.spread <= precision:
                return found
            look_at += max(LEAST_RUNS, look_at // 4)


def measure_in_turns(
    one: Callable[[], object],
    other: Callable[[], object],
    *,
    seconds: float,
    precision: float = 0.02,
    clock: Callable[[], int] = now_ns,
) -> tuple[Timing, float]:
    """The time of ``one``, and how many times as long ``other`` takes.

    Repeats both in turns until the median of the one and that of the ratio are known to ``precision``, or each has run
    for about ``seconds``. The ratio is the median of those of single turns: both see the machine as it is then.
    """
    samples: list[float] = []
    ratios: list[float] = []
    ends = clock() + 2 * round(seconds * SECOND)
    while True:
        of_one, of_other = _block(one, clock), _block(other, clock)
        samples += of_one
        ratios.append(statistics.median(of_other) / max(1.0, statistics.median(of_one)))
        timing, ratio = timing_of(samples), timing_of(ratios)
        is_known = len(ratios) >= LEAST_RUNS and timing.spread <= precision and ratio.spread <= precision
        if is_known or clock() >= ends:
            return timing, ratio.median


def _block(run: Callable[[], object], clock: Callable[[], int]) -> list[int]:
    run()
    found: list[int] = []
    for _ in range(_BLOCK):
        began = clock()
        run()
        found.append(clock() - began)
    return found
