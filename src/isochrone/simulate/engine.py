"""Simulated time: a heap of events, and the loop that handles them in order.

An event is an instant, a function and its argument. Events of the same instant are handled in the order in which they
were scheduled, so a run depends on its seed alone. Arrivals bypass the heap: they are sorted already, and there are
millions of them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from isochrone.clock import SECOND

#: The instant at which simulated clocks start. At 0, the gateway could not tell "never" from "at the start", and would
#: treat every worker as new (slow start).
START_NS = 3600 * SECOND

Handler = Callable[[int, Any], None]


class Engine:
    """The simulated clock and the scheduled events."""

    __slots__ = ("_order", "events", "heap", "now")

    def __init__(self) -> None:
        self.now = START_NS
        self.heap: list[tuple[int, int, Handler, Any]] = []
        #: Events handled so far.
        self.events = 0
        self._order = 0

    def at(self, instant: int, handler: Handler, argument: Any = None) -> None:
        """Schedule ``handler(instant, argument)``."""
        self._order += 1
        heappush(self.heap, (instant, self._order, handler, argument))

    def advance(self, until: int) -> None:
        """Handle all events up to and including ``until``."""
        heap = self.heap
        while heap and heap[0][0] <= until:
            instant, _, handler, argument = heappop(heap)
            self.now = instant
            self.events += 1
            handler(instant, argument)
        self.now = until

    def step(self) -> bool:
        """Handle the next event; False if there is none."""
        if not self.heap:
            return False
        instant, _, handler, argument = heappop(self.heap)
        self.now = instant
        self.events += 1
        handler(instant, argument)
        return True
