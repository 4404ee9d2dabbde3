"""When the ticks of a loop start and end: at a fixed phase, whatever earlier ticks took. Pure."""

from __future__ import annotations

from typing import NamedTuple

from isochrone.client.control_loop.settings import LoopSettings
from isochrone.clock import SECOND


class TickLimits(NamedTuple):
    """Instants of one tick, in ns."""

    start: int
    sense_ends: int
    #: The act instant: an action must be chosen by now.
    infer_ends: int
    deadline: int


class Schedule:
    """Tick ``first`` starts at ``began``, each other one a whole number of periods later."""

    __slots__ = ("_began", "_first", "_settings")

    def __init__(self, settings: LoopSettings, began: int, first: int = 0) -> None:
        self._settings = settings
        self._began = began
        self._first = first

    def start_of(self, tick: int) -> int:
        # From the number of the tick, so that rounding does not add up.
        return self._began + round((tick - self._first) * SECOND / self._settings.hz)

    def limits(self, tick: int) -> TickLimits:
        settings = self._settings
        start = self.start_of(tick)
        sense_ends = start + settings.sense
        infer_ends = sense_ends + settings.infer
        return TickLimits(start, sense_ends, infer_ends, infer_ends + settings.act)

    def next_from(self, tick: int, now: int) -> int:
        """The first tick, from ``tick`` on, whose act instant has not passed. Those before it are skipped."""
        settings = self._settings
        open_for = settings.sense + settings.infer
        passed = int((now - open_for - self._began) * settings.hz // SECOND) + self._first
        following = max(tick, passed)
        while self.start_of(following) + open_for <= now:
            following += 1
        while following > tick and self.start_of(following - 1) + open_for > now:
            following -= 1
        return following
