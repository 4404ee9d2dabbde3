"""Options that were left because they would have been late, and when each is used again. Pure.

Tiers and divisions are tried in an order of preference. Without a memory, traffic would oscillate between two options
with every load report. So an option that was left is used again only when it is well within the deadline. Now and then
one request probes it: nothing new may be known of an option that gets no requests.
"""

from __future__ import annotations

from typing import Protocol

from isochrone.clock import NEVER


class ReturnRules(Protocol):
    """When an option that was left is used again."""

    @property
    def return_share(self) -> float:
        """Its expected latency is at most this share of the remaining time."""

    @property
    def hold_ns(self) -> int:
        """It counts as left until it would have missed no deadline for this long."""

    @property
    def probe_every_ns(self) -> int:
        """The least time between two requests that probe it."""


class LeftOptions:
    """The options of one decision, by their place in its order."""

    __slots__ = ("_hold_ns", "_left", "_missed_at", "_probe_every_ns", "_probed_at", "_return_share")

    def __init__(self, count: int, rules: ReturnRules) -> None:
        self._return_share = rules.return_share
        self._hold_ns = rules.hold_ns
        self._probe_every_ns = rules.probe_every_ns
        #: By option: whether it was left, and when it last would have missed a deadline.
        self._left = [False] * count
        self._missed_at = [0] * count
        #: By option: when it last got a probe request.
        self._probed_at = [-NEVER] * count

    def _is_used(self, index: int, takes: float, time: int, now: int) -> bool:
        """Whether an option that is in time is used: always, unless it was left and is not well within the time."""
        if not self._left[index]:
            return True
        if takes > self._return_share * time:
            return False
        if now - self._missed_at[index] >= self._hold_ns:
            self._left[index] = False
        return True

    def _may_probe(self, index: int, now: int, waits: int = 1) -> bool:
        """``waits``: intervals that must have passed since the last probe."""
        if now - self._probed_at[index] < waits * self._probe_every_ns:
            return False
        self._probed_at[index] = now
        return True

    def _leave(self, index: int, now: int) -> None:
        """It would have been late, and another one is used instead."""
        self._left[index] = True
        self._missed_at[index] = now
