"""Simulated time: events in a heap, in order. The one loop of the simulator.

An event is an instant, a function and its argument. Equal instants go in the order they were asked for, so a run
depends on nothing but its seed. Arrivals do not go through the heap: they come sorted and by the million.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from isochrone.clock import SECOND

#: Simulated clocks begin here: at 0, "never" and "at the start" would look alike to the gateway's records, and every
#: worker would be a newcomer that starts slowly.
START_NS = 3600 * SECOND

Handler = Callable[[int, Any], None]


class Engine:
    """The clock and what is to happen."""

    __slots__ = ("_order", "events", "heap", "now")

    def __init__(self) -> None:
        self.now = START_NS
        self.heap: list[tuple[int, int, Handler, Any]] = []
        #: Events that have happened.
        self.events = 0
        self._order = 0

    def at(self, instant: int, handler: Handler, argument: Any = None) -> None:
        """Calls ``handler(instant, argument)`` when that time has come."""
        self._order += 1
        heappush(self.heap, (instant, self._order, handler, argument))

    def advance(self, until: int) -> None:
        """Lets everything up to ``until`` happen, that instant included."""
        heap = self.heap
        while heap and heap[0][0] <= until:
            instant, _, handler, argument = heappop(heap)
            self.now = instant
            self.events += 1
            handler(instant, argument)
        self.now = until

    def step(self) -> bool:
        """Lets the next event happen; False: there is none."""
        if not self.heap:
            return False
        instant, _, handler, argument = heappop(self.heap)
        self.now = instant
        self.events += 1
        handler(instant, argument)
        return True
