"""Two counts over a sliding window: all events, and some of them. Constant time, fixed memory.

The window is a ring of slots and a slot expires as a whole, so the counts cover between one slot less than the window
and the whole window. An instant before the newest slot counts in the newest slot.
"""

from __future__ import annotations


class SlidingCounts:
    """The number of recent events, and of those of one kind."""

    __slots__ = ("_all", "_newest", "_slot_ns", "_some", "all", "some")

    def __init__(self, window_ns: int, slots: int = 10) -> None:
        self._slot_ns = max(1, window_ns // slots)
        self._all = [0] * slots
        self._some = [0] * slots
        #: Index of the newest slot since the clock's origin.
        self._newest = 0
        self.all = 0
        self.some = 0

    def advance(self, now: int) -> None:
        """Expire old slots, so that ``all`` and ``some`` are valid for ``now``."""
        number = now // self._slot_ns
        passed = number - self._newest
        if passed <= 0:
            return
        slots = len(self._all)
        for step in range(1, min(passed, slots) + 1):
            index = (self._newest + step) % slots
            self.all -= self._all[index]
            self.some -= self._some[index]
            self._all[index] = self._some[index] = 0
        self._newest = number

    def add(self, now: int, all: int = 1, some: int = 0) -> None:
        """Count events, ``some`` of which are of the kind."""
        self.advance(now)
        index = self._newest % len(self._all)
        self._all[index] += all
        self._some[index] += some
        self.all += all
        self.some += some

    def clear(self) -> None:
        """Reset the counts."""
        for index in range(len(self._all)):
            self._all[index] = self._some[index] = 0
        self.all = self.some = 0
