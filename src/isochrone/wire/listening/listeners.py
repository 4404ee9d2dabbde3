"""The listeners of one process: they share its memory budget and stop together."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from isochrone import heap
from isochrone.heap import HeapTrimming
from isochrone.observe.loop_lag import LoopLag
from isochrone.observe.snapshot import WireSnapshot
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.budget import UNACCOUNTED, MemoryBudget
from isochrone.wire.exchange import Application
from isochrone.wire.listening.listener import Listener
from isochrone.wire.tls.contexts import ServerTls


class Listeners:
    """All listeners of a process. From the first one until ``stop`` they also measure the event loop's lag, and return
    the freed memory of large messages."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._budget = MemoryBudget(limits.max_buffered_bytes)
        self._lag = LoopLag()
        self._trimming = HeapTrimming(self._held, self._budget.take_peak, self._trim)
        self._listeners: list[Listener] = []

    def watch_lag(self, on_late: Callable[[int, int], None]) -> None:
        """Call it with when a timer of the event loop was due, and when it ran."""
        self._lag.on_late = on_late

    def add(self, application: Application, tls: ssl.SSLContext | None, limits: WireLimits | None = None) -> Listener:
        """Create a listener, not yet started. ``limits``: in place of the common ones."""
        self._lag.start()
        self._trimming.start()
        listener = Listener(application, limits or self._limits, tls, self._budget)
        self._listeners.append(listener)
        return listener

    def _trim(self) -> None:
        for budget in (self._budget, UNACCOUNTED):
            budget.bodies.clear()
        heap.trim()

    def _held(self) -> int:
        return self._budget.held

    def snapshot(self) -> WireSnapshot:
        budget = self._budget
        contexts = [listener.tls for listener in self._listeners if isinstance(listener.tls, ServerTls)]
        expiries = [each.expires for each in contexts if each.expires is not None]
        return WireSnapshot(
            connections=sum(len(listener.connections) for listener in self._listeners),
            stalled=sum(listener.stalled for listener in self._listeners),
            buffered=budget.held,
            buffered_peak=budget.peak,
            buffered_limit=budget.limit,
            rejected=budget.rejected,
            loop_lag=self._lag.histogram(),
            certificate_expires=min(expiries, default=None),
        )

    async def stop(self, grace: float) -> int:
        """Stop accepting, let connections finish within ``grace`` seconds, and abort the rest; returns their number."""
        cut = sum(await asyncio.gather(*(listener.stop(grace) for listener in self._listeners)))
        self._lag.stop()
        self._trimming.stop()
        return cut
