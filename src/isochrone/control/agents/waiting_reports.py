"""Decides when a gateway writes which models' requests wait for a worker. Pure.

A model that is not in the record yet is due at once: workers may have to be started for it. All else can wait a second.
The number of writes is bounded whatever the requests do, and the state after the last change is always written.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

#: Seconds that the record stands at least after the last change, and between two looks at the counts.
_STAND_SECONDS = 1.0
#: Writes that may follow one another at once, and seconds until one more may.
BURST, SECONDS_PER_WRITE = 3, 0.5
#: Seconds until a failed write is repeated: the first pause, which doubles, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class WaitingReports:
    """The record of one gateway. All times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._waiting: set[str] = set()
        #: What the record says; empty: there is none. None: unknown, since a write failed or the lease was lost.
        self._recorded: Mapping[str, int] | None = {}
        self._changed_at = self._looked_at = -inf
        self._retry_at, self._pause = -inf, _FIRST_PAUSE
        #: When as many writes may follow one another as if there had been none.
        self._rested_at = -inf

    def changed(self, model: str, waits: bool, now: float) -> None:
        """Requests of a model wait from now on, or none does any more."""
        self._changed_at = now
        if waits:
            self._waiting.add(model)
        else:
            self._waiting.discard(model)

    @property
    def due_at(self) -> float:
        """When to call ``take``; infinite: not before the next change."""
        if self._recorded is None:
            due = self._retry_at
        elif not self._waiting <= self._recorded.keys():
            due = -inf
        elif self._waiting:
            due = self._looked_at + _STAND_SECONDS
        elif self._recorded:
            due = self._changed_at + _STAND_SECONDS
        else:
            return inf
        return max(due, self._rested_at - (BURST - 1) * SECONDS_PER_WRITE)

    def take(self, counts: Mapping[str, int], now: float) -> Mapping[str, int] | None:
        """What the record must say from now on, empty: it must be deleted; None: nothing is to be written yet.

        ``counts``: the requests that wait now, by model."""
        self._waiting = set(counts)
        if now < self.due_at:
            return None
        self._looked_at = now
        if counts == self._recorded:
            return None
        self._recorded = dict(counts)
        self._rested_at = max(now, self._rested_at) + SECONDS_PER_WRITE
        return self._recorded

    def written(self) -> None:
        """The last write succeeded."""
        self._pause = _FIRST_PAUSE

    def failed(self, now: float) -> None:
        """The last write may have been made or not."""
        self._recorded = None
        self._retry_at = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def registered(self) -> None:
        """The gateway has a new lease: a record under the last one is gone, or goes with it."""
        if self._recorded != {}:
            self._recorded = None
            self._retry_at = -inf
