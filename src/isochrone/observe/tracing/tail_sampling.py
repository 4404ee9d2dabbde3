"""Tail sampling: which finished requests are kept. Pure: no clock, no randomness.

Every deadline miss and every error is kept, up to a rate (``failure_limit``), every request whose caller samples its
trace, one in ``trace_rate`` of the others, and the slowest of each minute. These are comparisons of ints, made on the
event loop for every request: of a request that is not kept, nothing is recorded.
"""

from __future__ import annotations

from heapq import heappush, heapreplace
from typing import Any, Final

from isochrone.clock import SECOND

#: Per model and minute.
SLOWEST_KEPT: Final = 5
MINUTE_NS: Final = 60 * SECOND


class TraceShare:
    """One in ``rate`` requests, and at most ``count`` traces for whatever reason (-1: any number).

    Triton's ``trace_rate`` and ``trace_count``: of one model, or of all models without settings of their own.
    """

    __slots__ = ("_rate", "left", "until")

    def __init__(self, rate: int, count: int) -> None:
        #: 0: no share.
        self._rate = rate
        #: The number of requests until one is due, that one included; 0 and below: none ever is.
        self.until = rate
        #: Traces that may still be kept; -1: any number.
        self.left = count

    def is_due(self) -> bool:
        """Counts a request; True for every ``rate``-th, the first of which is number ``rate``."""
        self.until -= 1
        if self.until:
            return False
        self.until = self._rate
        return True

    def spend(self) -> bool:
        """Counts a trace that is to be kept; False: the count is used up."""
        if self.left > 0:
            self.left -= 1
            return True
        return self.left < 0


class SlowestOfMinute:
    """The slowest requests of the current minute, with their records."""

    __slots__ = ("_ends", "_heap", "_most", "_number", "threshold")

    def __init__(self, now: int, most: int = SLOWEST_KEPT) -> None:
        self._most = most
        #: (duration, number, record); the number keeps records from being compared.
        self._heap: list[tuple[int, int, tuple[Any, ...]]] = []
        self._number = 0
        self._ends = now + MINUTE_NS
        #: A request must take longer than this to be among them.
        self.threshold = -1

    def add(self, duration: int, record: tuple[Any, ...]) -> None:
        """A request that took longer than ``threshold``."""
        self._number += 1
        entry = (duration, self._number, record)
        if len(self._heap) < self._most:
            heappush(self._heap, entry)
            if len(self._heap) < self._most:
                return
        else:
            heapreplace(self._heap, entry)
        self.threshold = self._heap[0][0]

    def ended(self, now: int) -> list[tuple[Any, ...]]:
        """The records of a minute that is over, slowest first; empty while it lasts."""
        return self.close(now) if now >= self._ends else []

    def close(self, now: int) -> list[tuple[Any, ...]]:
        """The records so far, slowest first; a new minute begins."""
        records = [record for _, _, record in sorted(self._heap, key=lambda entry: (-entry[0], entry[1]))]
        self._heap = []
        self._ends = now + MINUTE_NS
        self.threshold = -1
        return records
