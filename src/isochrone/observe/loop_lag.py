"""Event loop lag: how late the loop runs callbacks that are due. Every request waits that long.

A timer fires fifty times per second; its delay goes into a histogram. One late timer represents all callbacks that
waited in the same stall.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left

import numpy as np

from isochrone.clock import now_ns
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, Histogram

_INTERVAL = 0.02


class LoopLag:
    """Measures the running loop from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKET_BOUNDS_NS) + 1)
        self._sum_ns = 0
        self._due = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._plan()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _plan(self) -> None:
        self._due = now_ns() + int(_INTERVAL * 1e9)
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._fire)

    def _fire(self) -> None:
        late = max(0, now_ns() - self._due)
        self._counts[bisect_left(BUCKET_BOUNDS_NS, late)] += 1
        self._sum_ns += late
        self._plan()

    def histogram(self) -> Histogram:
        return Histogram(np.array(self._counts, np.int64), self._sum_ns)
