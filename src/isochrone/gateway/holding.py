"""Requests that wait at the gateway while versions are switched, so that nobody gets the old one after the new.

A strict switch asks every gateway to let no request without a version through until all have agreed: a few ms. What
comes in that time waits here and goes on in order, or is told why not when the switch takes too long or its own time is
up. One that fails must never take the others with it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

import structlog

from isochrone.errors import DeadlineExceeded, Internal, IsochroneError, Unavailable

if TYPE_CHECKING:
    from isochrone.wire.exchange import Exchange

log = structlog.get_logger()

#: Requests of one model that may wait; more are refused at once.
MOST = 16_384


class Handler(Protocol):
    """What takes a request up again: its route."""

    def handle(self, exchange: Exchange) -> None: ...

    def refuse_held(self, exchange: Exchange, error: IsochroneError) -> None: ...


class HeldRequest:
    """One request; its caller may leave meanwhile."""

    __slots__ = ("exchange", "gone", "handler")

    def __init__(self, handler: Handler, exchange: Exchange) -> None:
        self.handler = handler
        self.exchange = exchange
        self.gone = False

    def abandoned(self) -> None:
        self.gone = True

    def resume(self) -> None:
        if not self.gone:
            self.exchange.owner = None
            self.handler.handle(self.exchange)

    def refuse(self, error: IsochroneError) -> None:
        if not self.gone:
            self.exchange.owner = None
            self.handler.refuse_held(self.exchange, error)


class Held:
    """The requests of one model that wait, and streams that do."""

    def __init__(self, since: int) -> None:
        self.since = since
        #: In the order they came.
        self._waiting: dict[int, HeldRequest] = {}
        #: When the time of those is up that have a deadline, and which they are; the soonest first.
        self._due: list[tuple[int, int]] = []
        self._number = 0
        #: Streams look at their own deadlines.
        self._calls: list[tuple[Callable[[], None], Callable[[IsochroneError], None]]] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._calls)

    def wait(self, handler: Handler, exchange: Exchange, timeout_ns: int = 0) -> None:
        """The request goes on when the switch is over. ``timeout_ns``: what it gives itself; 0: it does not say."""
        self._make_sure_of_room()
        held = HeldRequest(handler, exchange)
        exchange.owner = held
        self._number += 1
        self._waiting[self._number] = held
        if timeout_ns:
            heappush(self._due, (exchange.arrived + timeout_ns, self._number))

    def wait_stream(self, resume: Callable[[], None], refuse: Callable[[IsochroneError], None]) -> None:
        """The same for a stream that is about to be placed."""
        self._make_sure_of_room()
        self._calls.append((resume, refuse))

    def _make_sure_of_room(self) -> None:
        if len(self) >= MOST:
            raise Unavailable(f"a version is being switched and {MOST} requests wait for it already; try again")

    def release(self) -> int:
        """All go on, in the order they came; how many."""
        taken = self._take_all()
        for resume, refuse in taken:
            try:
                resume()
            except Exception as error:
                # A fault of ours with one request must not end the others.
                log.error("a held request failed unexpectedly", exc_info=error)
                _refuse(refuse, Internal(f"{type(error).__name__}: {error}"))
        return len(taken)

    def refuse(self, error: IsochroneError) -> None:
        """It takes too long: they are told."""
        for _, refuse in self._take_all():
            _refuse(refuse, error)

    def expire(self, now: int) -> None:
        """Those whose own time is up are told; the others wait on."""
        while self._due and self._due[0][0] <= now:
            held = self._waiting.pop(heappop(self._due)[1], None)
            if held is not None:
                waited = (now - held.exchange.arrived) / 1e6
                reason = f"Request timeout expired: it waited {waited:.1f} ms for a version to be switched"
                _refuse(held.refuse, DeadlineExceeded(reason))

    def _take_all(self) -> list[tuple[Callable[[], None], Callable[[IsochroneError], None]]]:
        taken = [*((held.resume, held.refuse) for held in self._waiting.values()), *self._calls]
        self._waiting, self._due, self._calls = {}, [], []
        return taken


def _refuse(refuse: Callable[[IsochroneError], None], error: IsochroneError) -> None:
    try:
        refuse(error)
    except Exception as failure:
        log.error("a held request could not be refused", exc_info=failure)
