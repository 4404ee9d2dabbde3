"""Options that were left because they would have been late, and when each is used again. Pure.

Tiers and divisions are tried in an order of preference. Without a memory, traffic would oscillate between two options
with every load report. So an option that was left is used again only when it is well within the deadline.
"""

from __future__ import annotations

from typing import Protocol


class ReturnRules(Protocol):
    """When an option that was left is used again."""

    @property
    def return_share(self) -> float:
        """Its expected latency is at most this share of the remaining time."""

    @property
    def hold_ns(self) -> int:
        """It counts as left until it would have missed no deadline for this long."""


class LeftOptions:
    """The options of one decision, by their place in its order."""

    __slots__ = ("_hold_ns", "_left", "_missed_at", "_return_share")

    def __init__(self, count: int, rules: ReturnRules) -> None:
        self._return_share = rules.return_share
        self._hold_ns = rules.hold_ns
        #: By option: whether it was left, and when it last would have missed a deadline.
        self._left = [False] * count
        self._missed_at = [0] * count

    def _is_used(self, index: int, takes: float, time: int, now: int) -> bool:
        """Whether an option that is in time is used: always, unless it was left and is not well within the time."""
        if not self._left[index]:
            return True
        if takes > self._return_share * time:
            return False
        if now - self._missed_at[index] >= self._hold_ns:
            self._left[index] = False
        return True

    def _leave(self, index: int, now: int) -> None:
        """It would have been late, and another one is used instead."""
        self._left[index] = True
        self._missed_at[index] = now
