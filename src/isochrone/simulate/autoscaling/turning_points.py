"""Changes of direction: of the number of workers, and of the load itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def direction_changes(values: Sequence[float]) -> int:
    """How often a sequence turns from rising to falling, or back."""
    changes, direction = 0, 0
    for before, after in pairwise(values):
        now = (after > before) - (after < before)
        if now and direction and now != direction:
            changes += 1
        direction = now or direction
    return changes


def load_direction_changes(rates: Sequence[float], window: int, least: float) -> int:
    """How often the load turns: its means over ``window`` seconds, where each turn leads by at least ``least`` away
    from the last extreme. Smaller turns are noise."""
    means = [sum(rates[at : at + window]) / window for at in range(0, len(rates) - window + 1, window)]
    turns, direction = 0, 0
    low = high = means[0] if means else 0.0
    for mean in means:
        if direction <= 0:
            low = min(low, mean)
        if direction >= 0:
            high = max(high, mean)
        if direction <= 0 and mean - low >= least:
            turns += direction < 0
            direction, high = 1, mean
        elif direction >= 0 and high - mean >= least:
            turns += direction > 0
            direction, low = -1, mean
    return turns
