"""When the request machine wants to be called for which requests: what a gateway's sweep finds, without searching.

Requests that are due at the same instant come in the order of their arrival, as in a sweep.
"""

from __future__ import annotations

from heapq import heappop, heappush

from isochrone.clock import NEVER
from isochrone.gateway.requests.request import Request


class WatchedRequest(Request):
    """A request that is numbered by its arrival."""

    number: int
    #: The earliest instant at which it is looked at.
    watched_for = NEVER


class DueRequests:
    """The open requests of one gateway that are due some time."""

    def __init__(self) -> None:
        #: Instant, number, request. A request that was due at another instant before has several entries.
        self._heap: list[tuple[int, int, WatchedRequest]] = []

    def watch(self, request: WatchedRequest) -> bool:
        """Note when a request is due; whether it is the first of all now."""
        due_at = request.due_at
        if due_at >= request.watched_for:
            return False
        heap = self._heap
        # Requests that are over leave at the front: the heap holds those in flight, not those of a deadline's span.
        while heap and heap[0][2].over:
            heappop(heap)
        request.watched_for = due_at
        heappush(heap, (due_at, request.number, request))
        return heap[0][2] is request

    @property
    def next(self) -> int:
        """The first instant at which a request may be due; NEVER: there is none."""
        return self._heap[0][0] if self._heap else NEVER

    def take(self, now: int) -> list[WatchedRequest]:
        """Those that are due. ``watch`` them again if they go on."""
        heap, due = self._heap, {}
        while heap and heap[0][0] <= now:
            _, number, request = heappop(heap)
            request.watched_for = NEVER
            if not request.over:
                due[number] = request
        return [due[number] for number in sorted(due)]
