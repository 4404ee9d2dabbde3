"""The link to another server now, from what has crossed it. Pure.

Delays only add to a time, so the least time of a size within a window is that of the link itself: of the small
crossings it is the round trip, of the large ones, less the round trip, the bandwidth. The spread of the small ones is
the jitter. Figures that nothing recent tells keep their last value.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

from isochrone.clock import SECOND
from isochrone.models.divisions import Link

#: Crossings of this time tell the link.
WINDOW_NS = 3 * SECOND
_MOST = 512
#: Crossings up to here tell the round trip, and from there on the bandwidth.
SMALL_BYTES = 2 << 10
LARGE_BYTES = 16 << 10
#: Fewer small crossings tell no jitter.
_LEAST_FOR_JITTER = 4


@dataclass(frozen=True, slots=True)
class Crossing:
    """One request and its answer: when it ended, the bytes of both ways, how long it took, and how much of that the
    other server had it (None: it does not say)."""

    at: int
    size: int
    elapsed_ns: int
    there_ns: int | None

    @property
    def link_ns(self) -> int:
        return max(0, self.elapsed_ns - (self.there_ns or 0))


class LinkEstimator:
    """``known``: the link until something has crossed it."""

    def __init__(self, known: Link) -> None:
        self._round_trip = known.round_trip
        self._rate = known.bytes_per_second
        self._jitter = known.jitter
        self._crossings: deque[Crossing] = deque(maxlen=_MOST)
        #: When a large crossing was last seen; 0: never.
        self.bandwidth_seen = 0

    def add(self, crossing: Crossing) -> None:
        if crossing.there_ns is None:
            return  # the time on the link is not known
        self._crossings.append(crossing)
        if crossing.size >= LARGE_BYTES:
            self.bandwidth_seen = crossing.at

    def link(self, now: int) -> Link:
        crossings = self._crossings
        while crossings and crossings[0].at < now - WINDOW_NS:
            crossings.popleft()
        small = [each.link_ns / 1e9 for each in crossings if each.size <= SMALL_BYTES]
        if small:
            self._round_trip = min(small)
        if len(small) >= _LEAST_FOR_JITTER:
            middle = statistics.median(small)
            # For a normal distribution, σ is 1.4826 median deviations.
            self._jitter = 1.4826 * statistics.median(abs(each - middle) for each in small)
        large = [each for each in crossings if each.size >= LARGE_BYTES]
        if large:
            self._rate = max(self._rate_of(each) for each in large)
        return Link(self._round_trip, self._rate, self._jitter)

    def _rate_of(self, crossing: Crossing) -> float:
        seconds = crossing.link_ns / 1e9 - self._round_trip
        return crossing.size / seconds if seconds > 0 else math.inf
