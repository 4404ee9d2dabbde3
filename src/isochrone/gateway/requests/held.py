"""Requests that wait before they are placed: for a strict switch of versions, or for a worker. Pure.

A strict switch lets no request without a version through until every gateway has acknowledged: a few ms. A model whose
rules have a waiting room may have no worker for a while. Requests that arrive meanwhile wait here and go on in order,
by what is committed then.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice

from isochrone.clock import NEVER
from isochrone.errors import Unavailable
from isochrone.gateway.requests.request import Request

#: Requests of one model that may wait for a switch; more are rejected at once.
MOST = 16_384
_SWITCHING = f"a version is being switched and {MOST} requests wait for it already; try again"


class Held:
    """The waiting requests of one model: ``most`` of them, more are rejected with the message ``full``."""

    def __init__(self, most: int = MOST, full: str = _SWITCHING) -> None:
        self._most, self._full = most, full
        #: In the order they came.
        self._waiting: dict[Request, None] = {}
        #: Deadline, number, request: the nearest deadline first.
        self._due: list[tuple[int, int, Request]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def add(self, request: Request, until: int = NEVER) -> None:
        """``until``: it waits no longer than this, nor than its deadline."""
        if len(self._waiting) >= self._most:
            raise Unavailable(self._full)
        self._waiting[request] = None
        request.held = self
        until = min(until, request.deadline)
        if until != NEVER:
            self._number += 1
            heappush(self._due, (until, self._number, request))

    def remove(self, request: Request) -> None:
        """The caller of a request has gone."""
        request.held = None
        self._waiting.pop(request, None)

    def first(self, most: int) -> list[Request]:
        """The first requests, in the order they came. They wait on."""
        return list(islice(self._waiting, most))

    def take_all(self) -> list[Request]:
        """All requests, in the order they came; none waits any longer."""
        taken = list(self._waiting)
        for request in taken:
            request.held = None
        self._waiting, self._due = {}, []
        return taken

    def take_expired(self, now: int) -> list[Request]:
        """Requests that have waited as long as they may; the others wait on."""
        expired = []
        while self._due and self._due[0][0] <= now:
            request = heappop(self._due)[2]
            if request in self._waiting:
                self.remove(request)
                expired.append(request)
        return expired
