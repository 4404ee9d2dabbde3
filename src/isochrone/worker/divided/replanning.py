"""The present division of a divided model: when it moves. Pure.

A division that can no longer run is left at once. Otherwise another one has to be faster by a margin at several looks
in a row, and the present one must have served for a least time: figures that vary by less than the margin move nothing,
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
        #: A plan is as good as a long stay: the first move need not wait.
        self._since = now - rules.least_stay_ns
        self._slower_looks = 0

    def look(self, now: int, late: Mapping[str, float]) -> Move | None:
        """``late``: ns of each division that can run now. Returns the move that was made, if any."""
        if not late:
            # Nothing can run: the present one is as good as any, and the first that can run is moved to.
            self._slower_looks = 0
            return None
        best = min(late, key=lambda name: late[name])
        present = late.get(self.present)
        if present is None:
            return self._move(now, best, LOST, None, late[best])
        if late[best] >= present * (1 - self._rules.margin):
            self._slower_looks = 0
            return None
        self._slower_looks += 1
        if self._slower_looks < self._rules.looks or now - self._since < self._rules.least_stay_ns:
            return None
        return self._move(now, best, FASTER, present, late[best])

    def _move(self, now: int, target: str, reason: str, before: float | None, after: float) -> Move:
        move = Move(self.present, target, reason, before, after)
        self.present, self._since, self._slower_looks = target, now, 0
        return move
