"""Bounds of numeric settings, written beside their types: ``share: Share = 0.1``.

pydantic checks them when a settings file is read, and the error states the bounds. Decision code only carries them:
nothing evaluates them while a request is served.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic_core import CoreSchema

from isochrone.settings.numbers import number_schema


class Range(NamedTuple):
    """The numbers that a setting may have; None: unbounded. ``above`` and ``below`` exclude their value."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"from {self.least:g} to {self.most:g}"
        words = {"above": self.above, "at least": self.least, "below": self.below, "at most": self.most}
        return " and ".join(f"{word} {bound:g}" for word, bound in words.items() if bound is not None)

    def __get_pydantic_core_schema__(self, kind: Any, handler: Any) -> CoreSchema:
        return number_schema(kind, self)


#: A part of a whole.
Share = Annotated[float, Range(0, 1)]
#: A factor or a rate; 0 often means "none".
Amount = Annotated[float, Range(0)]
PositiveAmount = Annotated[float, Range(above=0)]
#: How many; 0 often means "no limit".
Count = Annotated[int, Range(0)]
#: How many, and at least one.
Positive = Annotated[int, Range(1)]
#: Nanoseconds. In a file such a setting ends in ``_ms`` and is milliseconds.
Duration = Annotated[int, Range(0)]
