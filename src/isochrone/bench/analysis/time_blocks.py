"""Blocks of time, drawn again with replacement: the block bootstrap for requests that depend on their neighbours.

Requests close in time wait in the same queue. Drawing single ones would take them for independent, and call noise a
difference. A run is cut into slots of equal time; blocks of successive slots are drawn, long enough for slots a block
apart to be uncorrelated.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

MOST_SLOTS = 128
FEWEST_SLOTS = 8
_REQUESTS_PER_SLOT = 8
#: So many blocks at least, or the draws would hardly differ.
_FEWEST_BLOCKS = 12


def slot_count(requests: int) -> int:
    return max(1, min(MOST_SLOTS, requests // _REQUESTS_PER_SLOT))


def slot_numbers(instants_ns: NDArray[np.int64], length_ns: float, slots: int) -> NDArray[np.int64]:
    """The slot of each instant; those outside of the run belong to its first or last slot."""
    numbers = (instants_ns * (slots / length_ns)).astype(np.int64) if length_ns > 0 else np.zeros_like(instants_ns)
    return np.clip(numbers, 0, slots - 1)


def slot_means(numbers: NDArray[np.int64], values: NDArray[np.float64], slots: int) -> NDArray[np.float64]:
    """The mean of the values in each slot; of an empty slot, that of all values."""
    counts = np.bincount(numbers, minlength=slots)
    sums = np.bincount(numbers, weights=values, minlength=slots)
    mean = float(values.mean()) if len(values) else 0.0
    return np.where(counts > 0, sums / np.maximum(counts, 1), mean)


def correlated_slots(series: NDArray[np.float64]) -> int:
    """How many slots apart values of the series are still correlated: the last lag before two that are not."""
    count = len(series)
    centred = series - series.mean()
    power = float(centred @ centred)
    if count < FEWEST_SLOTS or power <= 0:
        return 0
    threshold = 2 / math.sqrt(count)
    misses = 0
    for lag in range(1, count // 2):
        if abs(float(centred[lag:] @ centred[:-lag])) / power < threshold:
            misses += 1
            if misses == 2:
                return lag - 2
        else:
            misses = 0
    return count // 2


def block_length(slots: int, correlated: int) -> int:
    """In slots: twice the correlated distance, at least the cube root of their number (Bühlmann and Künsch)."""
    longest = max(1, slots // _FEWEST_BLOCKS)
    return min(longest, max(math.ceil(math.cbrt(slots)), 2 * correlated))


def drawn_weights(random: np.random.Generator, slots: int, length: int, draws: int) -> NDArray[np.float64]:
    """How often each draw holds each slot: one row per draw. Blocks wrap around, so that every slot is as likely."""
    starts = random.integers(0, slots, size=(draws, math.ceil(slots / length)))
    members = (starts[:, :, None] + np.arange(length)) % slots
    members = members.reshape(draws, -1)[:, :slots] + slots * np.arange(draws)[:, None]
    return np.bincount(members.ravel(), minlength=draws * slots).reshape(draws, slots).astype(np.float64)
