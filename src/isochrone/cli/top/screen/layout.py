"""Texts of an exact width, and the widths of columns on a screen of a given width. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from isochrone.cli.top.readings import printable
from isochrone.cli.top.screen.columns import NAME, Column

#: Widths of a trend: at least, and at most.
_LEAST_TREND, _MOST_TREND = 5, 60
#: A name takes no more than this while trends have room for more.
_USUAL_NAME = 20
#: Columns of this rank and above make room for the first trend, and for the second one.
_DISPENSABLE = (7, 10)


def fitted(text: str, width: int, right: bool = False) -> str:
    """Exactly ``width`` cells: cut with an ellipsis, or padded."""
    if width <= 0:
        return ""
    text = printable(text)
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - length) + text if right else text + " " * (width - length)


@dataclass(frozen=True, slots=True)
class Widths:
    #: The columns that have room, with their widths.
    columns: tuple[tuple[Column, int], ...]
    #: Of each trend.
    trends: tuple[int, ...]


def widths(columns: Sequence[Column], names: Sequence[str], trends: int, width: int) -> Widths:
    """The first column has ``names``. A space is between two columns.

    Where there is too little room, trends and columns of little rank are left out, then names are cut, then more
    columns are left out.
    """
    kept, shown = list(columns), trends
    longest = max(map(cell_len, names), default=0)
    least = kept[0].width
    name = max(least, min(longest, _USUAL_NAME))

    def excess() -> int:
        return name + sum(each.width + 1 for each in kept[1:]) + shown * (_LEAST_TREND + 1) - width

    while excess() > 0:
        last = max(kept, key=lambda each: each.rank)
        if last.rank >= _DISPENSABLE[max(0, min(shown, 2) - 1)]:
            kept.remove(last)
        elif shown:
            shown -= 1
        else:
            break
    name = max(least, name - max(0, excess()))
    while excess() > 0 and len(kept) > 1:
        kept.remove(max(kept, key=lambda each: each.rank))
    free = max(0, -excess())
    trend = min(_MOST_TREND, _LEAST_TREND + free // shown) if shown else 0
    free -= (trend - _LEAST_TREND) * shown
    name = min(max(0, width), name + min(free, max(0, longest - name)))
    sizes = [(each, name if each.what == NAME else each.width) for each in kept]
    return Widths(tuple(sizes), (trend,) * shown)
