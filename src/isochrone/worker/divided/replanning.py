"""The present division of a divided model: when it moves. Pure.

A division that can no longer run is left at once. Otherwise one other has to be faster by a margin at several looks in
a row, and the present one must have served for a least time: figures that vary by less than the margin move nothing,
and a move that proves wrong is not undone before the least time is over. Under constant times, every move leads to a
faster division, so that moves end.
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
        if self._looks < self._rules.looks or now - self._since < self._rules.least_stay_ns:
            return None
        return self._move(now, target, FASTER, present, late[target])

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
