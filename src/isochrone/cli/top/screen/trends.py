"""Sparklines and plots of block characters. Pure.

A character stands for one or several updates, always for the same ones: a trend moves, and its shape does not flicker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters from empty to full, and signs, for the encoding of the terminal."""

    levels: str
    descending: str
    ascending: str
    bar: str


BLOCKS: Final = Glyphs(" ▁▂▃▄▅▆▇█", "▼", "▲", "│")
ASCII: Final = Glyphs(" _.-:=+*#", "v", "^", "|")


def glyphs_for(encoding: str) -> Glyphs:
    try:
        (BLOCKS.levels + BLOCKS.descending + BLOCKS.ascending + BLOCKS.bar).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def condensed(values: Sequence[float | None], updates: int, span: int, width: int) -> list[float | None]:
    """The last ``span`` values as at most ``width``: each is the highest of its updates.

    ``updates``: how many values there have been in all; they decide which values stand together.
    """
    if width <= 0 or span <= 0:
        return []
    each = -(-span // width)
    shown: dict[int, float | None] = {}
    first = updates - len(values)
    for index, value in enumerate(values[-span:], max(first, updates - span)):
        place = index // each
        known = shown.get(place)
        shown[place] = value if known is None else known if value is None else max(known, value)
    return list(shown.values())[-width:]


def sparkline(values: Sequence[float | None], width: int, glyphs: Glyphs = BLOCKS) -> str:
    """The newest value is on the right; the scale is from 0 to the highest value. No value: a space."""
    if width <= 0:
        return ""
    rows = plot(values[-width:], width, 1, glyphs)
    return rows[0]


def plot(values: Sequence[float | None], width: int, height: int, glyphs: Glyphs = BLOCKS) -> list[str]:
    """``height`` lines of ``width`` characters, the highest values first."""
    if width <= 0 or height <= 0:
        return []
    values = values[-width:]
    highest = max((value for value in values if value is not None), default=0.0)
    full = len(glyphs.levels) - 1
    columns = []
    for value in values:
        level = 0
        if value is not None:
            # A known value is never empty: 0 is a line at the bottom.
            level = max(1, math.ceil(value / highest * full * height)) if highest > 0 else 1
        columns.append(level)
    return [
        "".join(glyphs.levels[min(full, max(0, level - full * row))] for level in columns).rjust(width)
        for row in reversed(range(height))
    ]
