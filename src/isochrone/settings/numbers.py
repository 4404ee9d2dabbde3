"""Validators of numbers: no strings, no booleans, no infinities; only the unit is converted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from pydantic_core import CoreSchema, core_schema

from isochrone.settings.validator_errors import wrong


class Bounds(Protocol):
    """The numbers that a setting may have; as text, a phrase such as ``at least 0``, or "" without bounds."""

    def holds(self, value: float) -> bool: ...


class Scaled(NamedTuple):
    """Metadata of a number that the file gives in another unit: ``scale`` times as much is kept."""

    bounds: Bounds
    scale: float
    unit: str

    def __get_pydantic_core_schema__(self, kind: Any, handler: Any) -> CoreSchema:
        return number_schema(kind, *self)


def number_schema(kind: type, bounds: Bounds, scale: float = 1.0, unit: str = "") -> CoreSchema:
    return core_schema.no_info_plain_validator_function(_validator(kind, bounds, scale, unit))


def _validator(kind: type, bounds: Bounds, scale: float, unit: str) -> Callable[[object], float]:
    is_whole = kind is int and scale == 1.0
    expected = ("an integer" if is_whole else "a number") + (f" of {unit}" if unit else "")
    if phrase := str(bounds):
        expected += f", {phrase}" if phrase.startswith("at ") else f" {phrase}"

    def check(given: object) -> float:
        if isinstance(given, bool) or not isinstance(given, int if is_whole else int | float):
            raise wrong(expected)
        try:
            value = given * scale if scale != 1.0 else given
            is_allowed = math.isfinite(value) and bounds.holds(value)
        except OverflowError:
            is_allowed = False
        if not is_allowed:
            raise wrong(expected)
        return round(value) if kind is int else float(value)

    return check
