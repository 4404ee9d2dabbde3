"""Requests that wait at the gateway while versions are switched, so that nobody gets the old one after the new.

A strict switch asks every gateway to let no request without a version through until all have agreed: a few ms. What
comes in that time waits here and goes on in order, or is told why not when the switch takes too long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from isochrone.errors import IsochroneError, Unavailable

if TYPE_CHECKING:
    from isochrone.wire.exchange import Exchange

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


class Held:
    """The requests of one model that wait, and streams that do."""

    def __init__(self, since: int) -> None:
        self.since = since
        self._waiting: list[HeldRequest] = []
        self._calls: list[tuple[Callable[[], None], Callable[[IsochroneError], None]]] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._calls)

    def wait(self, handler: Handler, exchange: Exchange) -> None:
        """The request goes on when the switch is over."""
        if len(self) >= MOST:
            raise Unavailable(f"a version is being switched and {MOST} requests wait for it already; try again")
        held = HeldRequest(handler, exchange)
        exchange.owner = held
        self._waiting.append(held)

    def wait_stream(self, resume: Callable[[], None], refuse: Callable[[IsochroneError], None]) -> None:
        """The same for a stream that is about to be placed."""
        if len(self) >= MOST:
            raise Unavailable(f"a version is being switched and {MOST} requests wait for it already; try again")
        self._calls.append((resume, refuse))

    def release(self) -> int:
        """All go on, in the order they came; how many."""
        waiting, self._waiting = self._waiting, []
        calls, self._calls = self._calls, []
        for held in waiting:
            if not held.gone:
                held.exchange.owner = None
                held.handler.handle(held.exchange)
        for resume, _ in calls:
            resume()
        return len(waiting) + len(calls)

    def refuse(self, error: IsochroneError) -> None:
        """It takes too long: they are told."""
        waiting, self._waiting = self._waiting, []
        calls, self._calls = self._calls, []
        for held in waiting:
            if not held.gone:
                held.exchange.owner = None
                held.handler.refuse_held(held.exchange, error)
        for _, refuse in calls:
            refuse(error)
