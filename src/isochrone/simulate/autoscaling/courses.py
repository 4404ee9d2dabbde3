"""Courses of load: how many requests arrive in each second, over hours or days.

A course is a shape times noise. Noise is multiplicative, of mean 1, and correlated over stated times (an
Ornstein-Uhlenbeck process in the logarithm); arrivals within a second are Poisson. The seed sets both, and the instants
of events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isochrone.simulate.draws import stream

if TYPE_CHECKING:
    from isochrone.simulate.draws import Floats

HOUR = 3600
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Course:
    """One load over time."""

    name: str
    #: Requests that arrive in each second.
    arrivals: list[int]
    #: Their expected number: the load without the noise of single requests.
    rates: list[float]
    #: Seconds after which every worker takes twice as long for a batch; 0: workers stay as fast as they are.
    leak_seconds: float = 0.0

    @property
    def seconds(self) -> int:
        return len(self.arrivals)


def noisy_day(seed: int) -> Course:
    """A day from half to one and a half times 4,000/s, with noise of seconds, minutes and half hours. By day the noise
    is three times that of the night."""
    random = stream(seed, "noisy_day")
    day = np.arange(DAY) / DAY
    light = (1 - np.cos(2 * np.pi * day)) / 2
    noise = _noise(random, DAY, ((20, 0.05), (300, 0.08), (1800, 0.08)))
    return _course("noisy_day", random, 4000 * (0.5 + light) * np.exp(noise * (0.5 + light)))


def flash_crowd(seed: int) -> Course:
    """1,500/s; at a random instant of the second hour the load grows sixfold within four minutes, stays for a quarter
    of an hour and fades over another half hour. Four hours."""
    random = stream(seed, "flash_crowd")
    seconds = np.arange(4 * HOUR)
    since = seconds - (HOUR + int(random.integers(HOUR)))
    grown = np.clip(since / 240, 0, 1)
    fading = np.exp(-np.clip(since - 240 - 900, 0, None) / 600)
    shape = 1500 * (1 + 5 * grown * fading)
    return _course("flash_crowd", random, shape * np.exp(_noise(random, len(seconds), ((20, 0.04), (300, 0.04)))))


def step(seed: int) -> Course:
    """As the flash crowd, but the load grows sixfold from one second to the next."""
    random = stream(seed, "step")
    seconds = np.arange(4 * HOUR)
    since = seconds - (HOUR + int(random.integers(HOUR)))
    fading = np.exp(-np.clip(since - 240 - 900, 0, None) / 600)
    shape = 1500 * (1 + 5 * np.where(since >= 0, 1.0, 0.0) * fading)
    return _course("step", random, shape * np.exp(_noise(random, len(seconds), ((20, 0.04), (300, 0.04)))))


def slow_leak(seed: int) -> Course:
    """4,000/s for twelve hours, while batches take longer and longer: twice as long at the end, as when a
    state that every request reads keeps growing. New workers are no faster."""
    random = stream(seed, "slow_leak")
    noise = _noise(random, 12 * HOUR, ((20, 0.04), (300, 0.06)))
    return _course("slow_leak", random, 4000 * np.exp(noise), leak_seconds=12 * HOUR)


def daily_pattern(seed: int) -> Course:
    """Four days of shifts: 1,500/s at night; at six o'clock the load grows fourfold within a minute, falls by a quarter
    at noon for three quarters of an hour, and ends at six in the evening over ten minutes. Each start is up to a minute
    early or late, and each day up to a tenth busier or calmer."""
    random = stream(seed, "daily_pattern")
    days = []
    for _ in range(4):
        seconds = np.arange(DAY) - random.uniform(-60, 60)
        shift = np.clip((seconds - 6 * HOUR) / 60, 0, 1) * np.clip((18 * HOUR + 600 - seconds) / 600, 0, 1)
        noon = np.clip((seconds - 12 * HOUR) / 120, 0, 1) * np.clip((12.75 * HOUR - seconds) / 120, 0, 1)
        days.append(1500 * (1 + 3 * shift * (1 - noon / 3) * random.uniform(0.9, 1.1)))
    noise = _noise(random, 4 * DAY, ((20, 0.04), (300, 0.05)))
    return _course("daily_pattern", random, np.concatenate(days) * np.exp(noise))


COURSES: dict[str, Callable[[int], Course]] = {
    course.__name__: course for course in (noisy_day, flash_crowd, step, slow_leak, daily_pattern)
}


def _course(name: str, random: np.random.Generator, rates: Floats, leak_seconds: float = 0.0) -> Course:
    return Course(name, random.poisson(rates).tolist(), rates.tolist(), leak_seconds)


def _noise(random: np.random.Generator, seconds: int, parts: Sequence[tuple[float, float]]) -> Floats:
    """The sum of processes, each with its correlation time in seconds and its standard deviation."""
    total = np.zeros(seconds)
    for correlation, deviation in parts:
        keep = float(np.exp(-1 / correlation))
        draws = random.normal(0.0, deviation * np.sqrt(1 - keep * keep), seconds).tolist()
        value = float(random.normal(0.0, deviation))
        values = []
        for draw in draws:
            value = value * keep + draw
            values.append(value)
        total += np.array(values) - deviation * deviation / 2
    return total
