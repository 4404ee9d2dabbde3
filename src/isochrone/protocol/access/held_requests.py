"""A request and a stream that wait until it is decided what their token proves; then they are handled as any other.

Their time goes on: a deadline counts from the arrival of the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from isochrone.secure.access.held import HeldRequests
    from isochrone.wire.exchange import Consumer, Exchange, Route

#: Of a stream that waits: it goes on at once, and is refused, if its caller sends more.
_MOST_BYTES: Final = 64 * 1024


class HeldRequest:
    """Its exchange's owner while it waits."""

    __slots__ = ("_exchange", "_held", "_route")

    def __init__(self, exchange: Exchange, route: Route) -> None:
        self._exchange = exchange
        self._route = route
        self._held: HeldRequests | None = None

    def waits(self, held: HeldRequests) -> bool:
        """False: there is no place, and the request has to be answered now."""
        if not held.hold(self.resume):
            return False
        self._held = held
        self._exchange.owner = self
        return True

    def resume(self) -> None:
        self._exchange.owner = None
        self._route.handle(self._exchange)

    def abandoned(self) -> None:
        if self._held is not None:
            self._held.forget(self.resume)


class HeldStream:
    """The first consumer of a stream's messages; hands over to that of its route."""

    def __init__(self, exchange: Exchange, route: Route, at_once: Route | None = None) -> None:
        """``at_once``: the route of a stream that must not wait any longer, and so must not be held again."""
        self._exchange = exchange
        self._route = route
        self._at_once = at_once or route
        self._held: HeldRequests | None = None
        self._received: list[bytes] = []
        self._size = 0
        self._has_ended = False
        self._next: Consumer | None = None

    def waits(self, held: HeldRequests) -> bool:
        if not held.hold(self.resume):
            return False
        self._held = held
        self._exchange.owner = self
        return True

    def resume(self) -> None:
        if self._next is None:
            self._open(self._route)

    def _open(self, route: Route) -> None:
        self._leave()
        self._exchange.owner = None
        consumer = self._next = route.open(self._exchange)
        received, self._received = self._received, []
        for data in received:
            consumer.data_received(data)
        if self._has_ended:
            consumer.ended()

    def data_received(self, data: bytes) -> None:
        if self._next is not None:
            self._next.data_received(data)
            return
        self._received.append(bytes(data))
        self._size += len(data)
        if self._size > _MOST_BYTES:
            # Nothing is known of its token yet.
            self._open(self._at_once)

    def ended(self) -> None:
        self._has_ended = True
        if self._next is not None:
            self._next.ended()

    def shed(self) -> None:
        if self._next is None:
            self._open(self._at_once)
        if self._next is not None:
            self._next.shed()

    def stopping(self) -> None:
        if self._next is not None:
            self._next.stopping()

    def abandoned(self) -> None:
        self._leave()

    def _leave(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.forget(self.resume)
