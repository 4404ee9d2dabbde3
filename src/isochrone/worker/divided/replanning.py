"""The present division of a divided model: when it moves. Pure.

A division that can no longer run is left at once. Otherwise one other has to be faster by a margin at several looks in
a row, and the present one must have served for a least time: figures that vary by less than the margin move nothing,
and a move that proves wrong is not undone before the least time is over. Under constant times, every move leads to a
faster division, so that moves end. Where measured times contradict estimated ones, two divisions that are nearly alike
could replace each other for ever: each such move soon after another doubles the least time, up to a limit. A division
that is twice as fast does not wait for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isochrone.clock import SECOND

#: Reasons of moves.
LOST = "lost"
FASTER = "faster"
REASONS = (LOST, FASTER)


@dataclass(frozen=True, slots=True)
class ReplanRules:
    #: By this share another division has to be faster.
    margin: float = 0.1
    #: At so many looks in a row.
    looks: int = 3
    #: That a division serves before a faster one replaces it.
    least_stay_ns: int = 5 * SECOND
    #: The least stay after many moves in a row, as a multiple.
    longest_stay: int = 16
    #: A division that takes at most this share of the present one's time waits for the least stay alone.
    large_gain: float = 0.5


@dataclass(frozen=True, slots=True)
class Move:
    """``before`` and ``after``: late times in ns; ``before`` is None if the division was lost."""

    origin: str
    target: str
    reason: str
    before: float | None
    after: float


class Replanner:
    """The state of one divided model."""

    def __init__(self, present: str, rules: ReplanRules, now: int) -> None:
        self.present = present
        self._rules = rules
        #: The first division has the least stay, too: the first figures of a link are the least certain.
        self._since = now
        #: The least stay now, and when it was last decided: at a move to a faster division.
        self._stay_ns = rules.least_stay_ns
        self._moved: int | None = None
        #: The division that the last looks named in a row, and how many they were.
        self._target, self._looks = "", 0

    def look(self, now: int, late: Mapping[str, float]) -> Move | None:
        """``late``: ns of each division that can run now. Returns the move that was made, if any."""
        if not late:
            # Nothing can run: the present one is as good as any, and the first that can run is moved to.
            self._target, self._looks = "", 0
            return None
        best = min(late, key=lambda name: late[name])
        present = late.get(self.present)
        if present is None:
            return self._move(now, best, LOST, None, late[best])
        target = self._candidate(late, best)
        if not self._is_faster(late[target], present):
            self._target, self._looks = "", 0
            return None
        self._looks = self._looks + 1 if target == self._target else 1
        self._target = target
        is_large = late[target] <= present * self._rules.large_gain
        if self._looks < self._rules.looks or now - self._since < (
            self._rules.least_stay_ns if is_large else self._stay_ns
        ):
            return None
        self._stay_ns, self._moved = self._next_stay(now), now
        return self._move(now, target, FASTER, present, late[target])

    def _next_stay(self, now: int) -> int:
        """After a move to a faster division: twice as long if the one before was not long ago."""
        if self._moved is None or now - self._moved >= 2 * self._stay_ns:
            return self._rules.least_stay_ns
        return min(2 * self._stay_ns, self._rules.longest_stay * self._rules.least_stay_ns)

    def _candidate(self, late: Mapping[str, float], best: str) -> str:
        """The one of the last look, unless the best would replace it: two that are alike must not block a move."""
        before = late.get(self._target)
        if before is None or self._target == self.present or self._is_faster(late[best], before):
            return best
        return self._target if self._is_faster(before, late[self.present]) else best

    def _is_faster(self, one: float, other: float) -> bool:
        return one < other * (1 - self._rules.margin)

    def _move(self, now: int, target: str, reason: str, before: float | None, after: float) -> Move:
        move = Move(self.present, target, reason, before, after)
        self.present, self._since = target, now
        self._target, self._looks = "", 0
        return move
