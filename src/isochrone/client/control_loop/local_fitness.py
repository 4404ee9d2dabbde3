"""Whether the local model can answer within a tick, from its runs so far. Pure.

A run that raises or takes longer than the limit is unfit. After several in a row the loop plans without the local
model, and tries it again at growing intervals; one fit run brings it back.
"""

from __future__ import annotations

from typing import Literal

from isochrone.clock import SECOND

#: The first run of a model often takes longer than the others.
_UNFIT_RUNS = 3
_FIRST_INTERVAL, _LONGEST_INTERVAL = SECOND, 60 * SECOND

Unfit = Literal["", "failed", "too slow"]


class LocalFitness:
    __slots__ = ("_interval", "_limit", "_next_try", "_reason", "_unfit_runs")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unfit_runs = 0
        self._reason: Unfit = ""
        self._interval = _FIRST_INTERVAL
        self._next_try = 0

    def took(self, nanoseconds: int, now: int) -> None:
        if nanoseconds > self._limit:
            self._was_unfit("too slow", now)
            return
        self._unfit_runs = 0
        self._interval = _FIRST_INTERVAL

    def failed(self, now: int) -> None:
        self._was_unfit("failed", now)

    def has_not_ended(self, now: int) -> None:
        """A run of an earlier tick still goes on."""
        self._was_unfit("too slow", now)

    @property
    def unfit(self) -> Unfit:
        """Why ticks are planned without the local model; empty while they are not."""
        return self._reason if self._unfit_runs >= _UNFIT_RUNS else ""

    def may_try(self, now: int) -> bool:
        return now >= self._next_try

    def _was_unfit(self, reason: Unfit, now: int) -> None:
        self._reason = reason
        self._unfit_runs += 1
        if self._unfit_runs > _UNFIT_RUNS:
            self._interval = min(self._interval * 2, _LONGEST_INTERVAL)
        self._next_try = now + self._interval
