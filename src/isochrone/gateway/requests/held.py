"""Requests that wait while a strict switch of versions is in progress. Pure.

A strict switch lets no request without a version through until every gateway has acknowledged: a few ms. Requests that
arrive meanwhile wait here and go on in order, by what is committed then.
"""

from __future__ import annotations

from heapq import heappop, heappush

from isochrone.clock import NEVER
from isochrone.errors import Unavailable
from isochrone.gateway.requests.request import Request

#: Requests of one model that may wait; more are rejected at once.
MOST = 16_384


class Held:
    """The waiting requests of one model."""

    def __init__(self) -> None:
        #: In the order they came.
        self._waiting: dict[Request, None] = {}
        #: Deadline, number, request: the nearest deadline first.
        self._due: list[tuple[int, int, Request]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> None:
        if len(self._waiting) >= MOST:
            raise Unavailable(f"a version is being switched and {MOST} requests wait for it already; try again")
        self._waiting[request] = None
        request.held = self
        if request.deadline != NEVER:
            self._number += 1
            heappush(self._due, (request.deadline, self._number, request))

    def remove(self, request: Request) -> None:
        """The caller of a request has gone."""
        request.held = None
        self._waiting.pop(request, None)

    def take_all(self) -> list[Request]:
        """All requests, in the order they came; none waits any longer."""
        taken = list(self._waiting)
        for request in taken:
            request.held = None
        self._waiting, self._due = {}, []
        return taken

    def take_expired(self, now: int) -> list[Request]:
        """Requests whose deadline has passed; the others wait on."""
        expired = []
        while self._due and self._due[0][0] <= now:
            request = heappop(self._due)[2]
            if request in self._waiting:
                self.remove(request)
                expired.append(request)
        return expired
