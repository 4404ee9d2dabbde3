"""Bounds of settings, written beside their types: ``share: Share = 0.1``. The reader of rules checks them.

Decision code only carries these; nothing on the way of a request looks at them.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple


class Range(NamedTuple):
    """The values a number may have, both ends included; None: no end."""

    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"at least {self.least:g}" if self.least is not None else "any number"
        return f"at most {self.most:g}" if self.least is None else f"from {self.least:g} to {self.most:g}"


#: A part of a whole.
Share = Annotated[float, Range(0, 1)]
#: A factor or a rate; 0 often means "none".
Amount = Annotated[float, Range(0)]
#: How many; 0 often means "no limit".
Count = Annotated[int, Range(0)]
#: How many, and at least one.
Positive = Annotated[int, Range(1)]
#: Nanoseconds. In a file such a setting ends in ``_ms`` and is milliseconds.
Duration = Annotated[int, Range(0)]
