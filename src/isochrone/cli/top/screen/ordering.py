"""The order of lines, and which lines a filter leaves. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from isochrone.cli.top.samples import Line
from isochrone.cli.top.screen.columns import value_of

_DIGITS = re.compile(r"([0-9]+)")


def ordered(lines: Sequence[Line], what: str, descending: bool) -> list[Line]:
    """By a column; equal lines by name, and lines without a value last, in either direction."""
    by_name = sorted(lines, key=lambda line: natural(line.name))
    known = [line for line in by_name if value_of(line, what) not in (None, "")]
    unknown = [line for line in by_name if value_of(line, what) in (None, "")]
    return sorted(known, key=lambda line: _rank(line, what), reverse=descending) + unknown


def matching(lines: Sequence[Line], pattern: str) -> list[Line]:
    """Lines whose name, label or state contains the pattern, in any case."""
    sought = pattern.casefold()
    return [
        line
        for line in lines
        if not sought or any(sought in text.casefold() for text in (line.name, line.label, line.state))
    ]


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts ``cpu-2`` before ``cpu-10``."""
    parts = _DIGITS.split(text.casefold())
    # Text and digits alternate. Digits by length, then by value: int() refuses very long ones.
    return [(len(part.lstrip("0")), part.lstrip("0")) if index % 2 else (0, part) for index, part in enumerate(parts)]


def _rank(line: Line, what: str) -> tuple[float, list[tuple[int, str]]]:
    value = value_of(line, what)
    return (0.0, natural(value)) if isinstance(value, str) else (value or 0.0, [])
