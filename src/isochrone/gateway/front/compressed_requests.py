"""Requests with compressed bodies on their way to a worker: their JSON part is read before they are placed.

Stands before ``http_requests``. The body itself is forwarded as it came, also where it does not decompress: that is for
the worker to reject. What takes long is decompressed on a thread, while the request waits; of a large JSON part only
the ends are read. Must never hold up the event loop.
"""

from __future__ import annotations

from isochrone.errors import IsochroneError, Unavailable
from isochrone.gateway.front.http_requests import HttpRoute
from isochrone.gateway.traffic.asked_priority import asked_priority
from isochrone.gateway.traffic.parameters import NONE
from isochrone.protocol.compression.codec import StartInflation
from isochrone.protocol.compression.inflating import Waiting, inflate
from isochrone.protocol.rest.answers import respond_error
from isochrone.wire.exchange import Exchange, Route

#: The most that is decompressed of a JSON part.
_MOST = 32 << 20


class CompressedRoute(Route):
    """Requests with one head that announces a compressed body."""

    def __init__(self, route: HttpRoute, encoding: bytes, limit: int) -> None:
        self._route = route
        self._encoding = encoding
        self._limit = limit
        #: Bytes of the JSON part; the whole body where it does not say.
        self._wanted = min(route.json_length, _MOST) if route.json_length >= 0 else _MOST

    def handle(self, exchange: Exchange) -> None:
        if not exchange.body:
            self._route.handle(exchange)
            return
        before = exchange.reserved
        try:
            start = StartInflation(self._encoding, exchange.body, self._limit, self._wanted)
            text = inflate(start, exchange, lambda found: self._go_on(exchange, before, found))
        except IsochroneError as error:
            self._go_on(exchange, before, error)
            return
        if text is None:
            exchange.owner = Waiting(start)
        else:
            self._go_on(exchange, before, text)

    def _go_on(self, exchange: Exchange, before: int, found: bytearray | IsochroneError) -> None:
        """``before``: what was reserved for the request alone."""
        exchange.owner = None
        if isinstance(found, Unavailable):
            respond_error(exchange, found)
            return
        try:
            grant = exchange.head.grant
            if isinstance(found, IsochroneError):
                if grant is not None and grant.limits_priority:
                    raise found  # a worker with larger limits would read it
                route = self._route.opened(NONE)
            else:
                route = self._route.read(found)
                if grant is not None and grant.limits_priority:
                    route.asked_priority = asked_priority(found, len(found))
        except IsochroneError as error:
            respond_error(exchange, error)
            return
        del found
        if exchange.reserved > before:
            exchange.give_back(exchange.reserved - before)
        route.handle(exchange)
