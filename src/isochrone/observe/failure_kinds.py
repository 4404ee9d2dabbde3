"""Limits log lines of failures by their kind: different failures each have a line, the same one has one a minute.

The kind of a failure is where the model's code raised it; without such a place, the shape of its message.
"""

from __future__ import annotations

import re
from typing import Final

from isochrone.clock import SECOND
from isochrone.observe.sparing import Sparing

#: Kinds that are counted each for itself. All others share one line.
_MOST_KINDS: Final = 32
_LONGEST_SHAPE: Final = 200
_EVERY_NS: Final = 60 * SECOND

_NUMBERS = re.compile(r"\d+")
_FRAMES = re.compile(r'^ +File ".*", line \d+.*$', re.MULTILINE)


class FailureKinds:
    """Which failures of one model version are due for a line."""

    __slots__ = ("_kinds", "_others")

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, ...], Sparing] = {}
        self._others = Sparing(_EVERY_NS)

    def lets_through(self, error: BaseException, now: int) -> int | None:
        """The number of failures of this kind that had no line since the last one; None: this one has none."""
        kind = kind_of(error)
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds = {each: line for each, line in self._kinds.items() if not line.is_due(now)}
            known = self._kinds.setdefault(kind, Sparing(_EVERY_NS)) if len(self._kinds) < _MOST_KINDS else self._others
        return known.lets_through(now)


def kind_of(error: BaseException) -> tuple[str, ...]:
    """By the innermost frame of its cause; of the traceback that came with it from another process; or its message."""
    cause = error.__cause__
    name = type(cause or error).__name__
    place = cause.__traceback__ if cause is not None else None
    if place is not None:
        while place.tb_next is not None:
            place = place.tb_next
        return name, place.tb_frame.f_code.co_filename, str(place.tb_lineno)
    frames = _FRAMES.findall("\n".join(getattr(error, "__notes__", ())))
    if frames:
        return name, frames[-1]
    try:
        text = str(error)
    except Exception:
        text = ""
    return name, _NUMBERS.sub("#", text)[:_LONGEST_SHAPE]
