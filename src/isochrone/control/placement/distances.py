"""Round trips from gateways to workers, estimated from samples. Configured distances are only the value before any.

A sample is never shorter than the network and often longer: queues, interrupts and sleeping processes add to it. So the
least sample of each interval counts, and of several intervals the median: one interval in which every sample waited, or
one sample of a clock that jumped, changes nothing. What is published changes only if the estimate has left it by more
than a margin in two intervals one after the other, so that placements do not follow noise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container
from statistics import median

#: Seconds of an interval, and the intervals that an estimate looks back on.
INTERVAL, INTERVALS = 10.0, 7
#: An estimate that differs from what is published by less than this share, or by less than these seconds, is noise.
MARGIN, LEAST_CHANGE = 0.2, 0.0002
#: Intervals in a row that must differ.
_CONFIRMED = 2


class RoundTrip:
    """The round trip between one gateway and one worker. ``now``: seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._least: deque[float] = deque(maxlen=INTERVALS)
        self._interval: int | None = None
        self._current = math.inf
        self._differed = 0
        #: The published value in seconds; None: nothing is measured yet.
        self.value: float | None = None
        self._last = -math.inf

    def add(self, now: float, seconds: float) -> None:
        """A sample. One that cannot be a round trip is ignored; time that goes back counts for the present interval."""
        if not 0 < seconds < math.inf or not math.isfinite(now):
            return
        interval = int(now // INTERVAL)
        if self._interval is None:
            self._interval = interval
        elif interval > self._interval:
            self._close()
            self._interval = interval
        self._current = min(self._current, seconds)
        self._last = max(self._last, now)
        if self.value is None:
            # The first sample is better than a configured distance.
            self.value = seconds

    def is_stale(self, now: float) -> bool:
        """Whether all samples are older than the intervals of an estimate."""
        return now - self._last > INTERVAL * INTERVALS

    def _close(self) -> None:
        self._least.append(self._current)
        self._current = math.inf
        estimate = median(self._least)
        value = self.value
        if value is None or abs(estimate - value) <= max(MARGIN * value, LEAST_CHANGE):
            self._differed = 0
            return
        self._differed += 1
        # The first interval replaces the first sample at once.
        if self._differed >= _CONFIRMED or len(self._least) == 1:
            self.value, self._differed = estimate, 0


class Distances:
    """The round trips of all pairs of gateways and workers."""

    def __init__(self) -> None:
        self._pairs: dict[str, dict[str, RoundTrip]] = {}

    def add(self, gateway: str, worker: str, now: float, seconds: float) -> None:
        self._pairs.setdefault(worker, {}).setdefault(gateway, RoundTrip()).add(now, seconds)

    def to(self, worker: str, now: float) -> float | None:
        """The median over the gateways that measured it lately, in seconds; None: none did.

        The median, since requests may come through any gateway, and one far gateway must not move a model.
        """
        found = [each.value for each in self._pairs.get(worker, {}).values() if not each.is_stale(now)]
        known = [value for value in found if value is not None]
        return median(known) if known else None

    def by_worker(self, now: float) -> dict[str, float]:
        """The same of all workers that a gateway measured lately."""
        found = {worker: self.to(worker, now) for worker in self._pairs}
        return {worker: seconds for worker, seconds in found.items() if seconds is not None}

    def forget_others(self, gateways: Container[str], now: float) -> None:
        """Drop all gateways but these, and workers that no gateway measured lately: they are gone."""
        for worker, trips in list(self._pairs.items()):
            kept = {gateway: each for gateway, each in trips.items() if gateway in gateways and not each.is_stale(now)}
            if kept:
                self._pairs[worker] = kept
            else:
                del self._pairs[worker]
