"""Event loop lag: how late the loop runs callbacks that are due. Every request waits that long.

A timer fires fifty times per second while the process works, and once per second while it is idle; its delay goes into
a histogram. One late timer represents all callbacks that waited in the same stall.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from isochrone.clock import now_ns
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, Histogram

#: Seconds between measurements of a process that works, and of one that is idle.
_INTERVAL, _IDLE_INTERVAL = 0.02, 1.0
#: A process that used less than this share of a core since the last measurement is idle.
_IDLE_SHARE = 0.05


def interval_after(used_ns: int, passed_ns: int) -> float:
    """Seconds until the next measurement, of a process that used so much processor time in the time that passed."""
    return _INTERVAL if used_ns >= _IDLE_SHARE * passed_ns else _IDLE_INTERVAL


class LoopLag:
    """Measures the running loop from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKET_BOUNDS_NS) + 1)
        self._sum_ns = 0
        self._planned_at = self._due = 0
        #: Processor time of the process, all its threads, when the timer was set.
        self._used_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        #: Called with the instant a timer was due, and that at which it ran.
        self.on_late: Callable[[int, int], None] | None = None

    def start(self) -> None:
        if self._timer is None:
            self._plan(_INTERVAL)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _plan(self, seconds: float) -> None:
        self._planned_at, self._used_ns = now_ns(), time.process_time_ns()
        self._due = self._planned_at + int(seconds * 1e9)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def _fire(self) -> None:
        now = now_ns()
        late = max(0, now - self._due)
        self._counts[bisect_left(BUCKET_BOUNDS_NS, late)] += 1
        self._sum_ns += late
        if self.on_late is not None:
            self.on_late(self._due, now)
        self._plan(interval_after(time.process_time_ns() - self._used_ns, now - self._planned_at))

    def histogram(self) -> Histogram:
        return Histogram(np.array(self._counts, np.int64), self._sum_ns)
