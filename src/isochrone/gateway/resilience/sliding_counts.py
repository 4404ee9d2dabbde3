"""Two counts over a sliding window: all, and some of them. Constant time, fixed memory, the clock is handed in.

The window is a ring of slots; a slot is forgotten whole, so what is counted is at most the window and at least the
window less one slot. Instants that go back a little are counted in the newest slot.
"""

from __future__ import annotations


class SlidingCounts:
    """How many there were of late, and how many of those were of the kind that is watched."""

    __slots__ = ("_all", "_newest", "_slot_ns", "_some", "all", "some")

    def __init__(self, window_ns: int, slots: int = 10) -> None:
        self._slot_ns = max(1, window_ns // slots)
        self._all = [0] * slots
        self._some = [0] * slots
        #: Number of the newest slot since the clock's start.
        self._newest = 0
        self.all = 0
        self.some = 0

    def advance(self, now: int) -> None:
        """Forgets what left the window. ``all`` and ``some`` hold for ``now`` after this."""
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
        """Counts so many, of which ``some`` are watched."""
        self.advance(now)
        index = self._newest % len(self._all)
        self._all[index] += all
        self._some[index] += some
        self.all += all
        self.some += some

    def clear(self) -> None:
        """Forgets all of it."""
        for index in range(len(self._all)):
            self._all[index] = self._some[index] = 0
        self.all = self.some = 0
