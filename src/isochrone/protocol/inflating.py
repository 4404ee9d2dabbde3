"""Requests with compressed bodies: decompressed before their route sees them, large ones beside the event loop.

Stands between the wire and a route. Two threads, so that the loop keeps a core to itself; what they have given, and
nobody has let go of yet, is bounded for the whole process.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from isochrone.errors import Internal, IsochroneError, MalformedRequest, Unavailable
from isochrone.protocol.rest_answers import respond_error
from isochrone.wire.compression import Inflated, Inflation, is_identity
from isochrone.wire.exchange import Exchange, Head, Route

Fail = Callable[[Any, IsochroneError], None]

#: Bodies of the largest allowed size that may be held at once.
_LARGEST_HELD = 2
#: Of a gRPC message: its flag and its length.
_PREFIX = 5

_threads = ThreadPoolExecutor(2, thread_name_prefix="isochrone-inflate")


class _Held:
    """Bytes of large bodies that requests still have."""

    bytes = 0

    @classmethod
    def add(cls, body: Inflated) -> None:
        cls.bytes += len(body)
        weakref.finalize(body, cls._release, len(body)).atexit = False

    @classmethod
    def _release(cls, size: int) -> None:
        cls.bytes -= size


def begun(inflation: Inflation, limit: int) -> Inflated | None:
    """The body, if it is small; None: ``finish_later`` has to be called. Raises also when there is no memory for it."""
    body = inflation.begin()
    if body is None and _Held.bytes > _LARGEST_HELD * limit:
        raise Unavailable("no memory for another large compressed body at the moment; try again, or elsewhere")
    return body


def finish_later(inflation: Inflation, done: Callable[[Inflated | IsochroneError], None]) -> None:
    """Decompresses on a thread; ``done`` is called on the loop, unless the inflation was abandoned."""

    def finished(future: asyncio.Future[Inflated]) -> None:
        error = future.exception()
        if inflation.abandoned:
            return
        if error is None:
            body = future.result()
            _Held.add(body)
            done(body)
        else:
            done(error if isinstance(error, IsochroneError) else Internal(f"{type(error).__name__}: {error}"))

    asyncio.get_running_loop().run_in_executor(_threads, inflation.finish).add_done_callback(finished)


def inflating(route: Route, head: Head, limit: int) -> Route:
    """The route for REST requests with this head: the same, or behind a decompression."""
    encoding = head.get(b"content-encoding")
    if encoding is None or is_identity(encoding) or route.streaming:
        return route
    return _InflatingRoute(route, encoding, limit, respond_error)


def inflating_messages(route: Route, encoding: bytes, limit: int, fail: Fail) -> Route:
    """The route for unary gRPC calls whose message may be compressed."""
    if is_identity(encoding) or route.streaming:
        return route
    return _InflatingMessages(route, encoding, limit, fail)


class _InflatingRoute(Route):
    def __init__(self, route: Route, encoding: bytes, limit: int, fail: Fail) -> None:
        self._route = route
        self._encoding = encoding
        self._limit = limit
        self._fail = fail

    def handle(self, exchange: Exchange) -> None:
        try:
            inflation = self._inflation(exchange)
            if inflation is None:
                self._route.handle(exchange)
                return
            body = begun(inflation, self._limit)
        except IsochroneError as error:
            self._fail(exchange, error)
            return
        if body is not None:
            self._go_on(exchange, body)
            return
        exchange.owner = _Waiting(inflation)
        finish_later(inflation, lambda found: self._finished(exchange, found))

    def _inflation(self, exchange: Exchange) -> Inflation | None:
        return Inflation(self._encoding, exchange.body, self._limit)

    def _finished(self, exchange: Exchange, found: Inflated | IsochroneError) -> None:
        exchange.owner = None
        if isinstance(found, IsochroneError):
            self._fail(exchange, found)
        else:
            self._go_on(exchange, found)

    def _go_on(self, exchange: Exchange, body: Inflated) -> None:
        exchange.body = body
        self._route.handle(exchange)


class _InflatingMessages(_InflatingRoute):
    """The body becomes an uncompressed message with its prefix."""

    def _inflation(self, exchange: Exchange) -> Inflation | None:
        body = exchange.body
        if len(body) < _PREFIX or body[0] != 1:
            return None  # not compressed, or not a message: the route's own affair
        if (length := int.from_bytes(body[1:_PREFIX], "big")) != len(body) - _PREFIX:
            raise MalformedRequest(f"the gRPC message announces {length} bytes, given {len(body) - _PREFIX}")
        return Inflation(self._encoding, memoryview(body)[_PREFIX:], self._limit, room=_PREFIX)

    def _go_on(self, exchange: Exchange, body: Inflated) -> None:
        body[1:_PREFIX] = (len(body) - _PREFIX).to_bytes(4, "big")
        super()._go_on(exchange, body)


class _Waiting:
    """Owns the exchange while its body is decompressed."""

    def __init__(self, inflation: Inflation) -> None:
        self.inflation = inflation

    def abandoned(self) -> None:
        self.inflation.abandoned = True
