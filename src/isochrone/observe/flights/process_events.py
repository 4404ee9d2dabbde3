"""The last events of a process: pauses of the garbage collector, stalls of the event loop, loads of models.

``GcWatch`` is called at every collection, some hundred times a second in a busy process: it reads the clock twice and
keeps only what took long.
"""

from __future__ import annotations

import gc
from typing import Any

from isochrone.clock import MILLISECOND, now_ns
from isochrone.observe.flights.messages import GC_PAUSE, STALL, Event
from isochrone.observe.flights.ring import Ring

#: Shorter pauses are not kept.
_LEAST_PAUSE_NS = MILLISECOND
_LEAST_STALL_NS = 5 * MILLISECOND


class ProcessEvents:
    """The events of one process. Any thread may add one: a store of a tuple is atomic."""

    def __init__(self, size: int) -> None:
        self._ring = Ring(size)

    def add(self, kind: str, began: int, ended: int, detail: str = "") -> None:
        self._ring.add((kind, began, ended, detail[:500]))

    def stalled(self, due: int, now: int) -> None:
        """The event loop ran a callback late."""
        if now - due >= _LEAST_STALL_NS:
            self.add(STALL, due, now)

    def during(self, began: int, ended: int) -> tuple[Event, ...]:
        """Those that overlap a time, the oldest first."""
        found = [Event(*record) for _, record in self._ring.latest() if record[2] >= began and record[1] <= ended]
        return tuple(sorted(found, key=lambda event: event.began))


class GcWatch:
    """Notes long pauses of the garbage collector from ``start`` to ``stop``."""

    def __init__(self, events: ProcessEvents) -> None:
        self._events = events
        self._began = 0

    def start(self) -> None:
        gc.callbacks.append(self._called)

    def stop(self) -> None:
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def _called(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = now_ns()
            return
        now = now_ns()
        if self._began and now - self._began >= _LEAST_PAUSE_NS:
            self._events.add(GC_PAUSE, self._began, now, f"generation {info.get('generation', '?')}")
