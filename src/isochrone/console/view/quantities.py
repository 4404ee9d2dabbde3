"""Figures as numbers that a browser shows as they are: milliseconds with few digits, so that messages stay small."""

from __future__ import annotations

from typing import Final

_NS_PER_MS: Final = 1e6


def milliseconds(nanoseconds: float) -> float:
    """Three significant digits or a microsecond, whichever is coarser."""
    value = nanoseconds / _NS_PER_MS
    return round(value, 3) if value < 10 else round(value, 1)


def rounded(value: float) -> float:
    """A rate or a share with as many digits as a reader needs."""
    return round(value, 4) if abs(value) < 1 else round(value, 1)
