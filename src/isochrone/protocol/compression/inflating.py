"""Requests with compressed bodies: decompressed before their route sees them, large ones beside the event loop.

Stands between the wire and a route. Two threads, so that the loop keeps a core to itself. What a body grows to is part
of the process's memory budget: it is reserved on the loop before a thread fills it, slice by slice, since nobody knows
its size before, and held until its request is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from isochrone.errors import Internal, IsochroneError, MalformedRequest, Unavailable
from isochrone.protocol.compression.codec import Inflation, is_identity
from isochrone.wire.budget import SMALL
from isochrone.wire.exchange import Exchange, Memory, Route

Fail = Callable[[Any, IsochroneError], None]
Done = Callable[[bytearray | IsochroneError], None]

#: Bytes that are reserved and inflated before the loop is asked for more: 5 to 20 ms of a thread.
_SLICE = 4 * 1024 * 1024
#: Of a gRPC message: its flag and its length.
_PREFIX = 5

_threads = ThreadPoolExecutor(2, thread_name_prefix="isochrone-inflate")


def inflate(inflation: Inflation, memory: Memory, done: Done) -> bytearray | None:
    """The body, if it is small; None: ``done`` is called with it on the loop, unless the inflation is abandoned.

    Raises what is wrong, also that there is no memory. What the body takes of ``memory`` is for the caller to give
    back.
    """
    body = inflation.begin()
    if body is None:
        _Slices(inflation, memory, done).go_on()
    elif len(body) > SMALL and not memory.reserve(len(body)):
        raise Unavailable(memory.no_memory())
    return body


class _Slices:
    """One large body on its way through the threads."""

    __slots__ = ("_done", "_inflation", "_memory", "_reserved")

    def __init__(self, inflation: Inflation, memory: Memory, done: Done) -> None:
        self._inflation = inflation
        self._memory = memory
        self._done = done
        self._reserved = 0

    def go_on(self) -> None:
        """Has one slice more inflated."""
        # One byte over what is allowed shows that it is too large.
        most = min(self._reserved + _SLICE, self._inflation.allowed + 1)
        if not self._memory.reserve(most - self._reserved):
            raise Unavailable(self._memory.no_memory())
        self._reserved = most
        loop = asyncio.get_running_loop()
        loop.run_in_executor(_threads, self._inflation.go_on, most).add_done_callback(self._worked)

    def _worked(self, future: asyncio.Future[bytearray | None]) -> None:
        error = future.exception()
        body = future.result() if error is None else None
        if self._inflation.abandoned:
            self._memory.give_back(self._reserved)
            return
        if error is None and body is None:
            try:
                self.go_on()
                return
            except Unavailable as unavailable:
                error = unavailable
        if body is not None:
            self._memory.give_back(max(0, self._reserved - len(body)))
            self._done(body)
            return
        self._memory.give_back(self._reserved)
        self._done(error if isinstance(error, IsochroneError) else Internal(f"{type(error).__name__}: {error}"))


def inflating_messages(route: Route, encoding: bytes, limit: int, fail: Fail) -> Route:
    """The route for unary gRPC calls whose message may be compressed."""
    if is_identity(encoding) or route.streaming:
        return route
    return _InflatingMessages(route, encoding, limit, fail)


class InflatingRoute(Route):
    """A route whose requests are decompressed before ``route`` sees them; ``fail`` answers those that cannot be."""

    def __init__(self, route: Route, encoding: bytes, limit: int, fail: Fail) -> None:
        self._route = route
        self._encoding = encoding
        self._limit = limit
        self._fail = fail

    def handle(self, exchange: Exchange) -> None:
        packed = exchange.reserved
        try:
            inflation = self._inflation(exchange)
            if inflation is None:
                self._route.handle(exchange)
                return
            body = inflate(inflation, exchange, lambda found: self._finished(exchange, packed, found))
        except IsochroneError as error:
            self._fail(exchange, error)
            return
        if body is None:
            exchange.owner = Waiting(inflation)
        else:
            self._go_on(exchange, packed, body)

    def _inflation(self, exchange: Exchange) -> Inflation | None:
        """None: nothing to decompress. Some clients send the header with every call, also with those without a body."""
        return Inflation(self._encoding, exchange.body, self._limit) if exchange.body else None

    def _finished(self, exchange: Exchange, packed: int, found: bytearray | IsochroneError) -> None:
        exchange.owner = None
        if isinstance(found, IsochroneError):
            self._fail(exchange, found)
        else:
            self._go_on(exchange, packed, found)

    def _go_on(self, exchange: Exchange, packed: int, body: bytearray) -> None:
        """``packed``: what is reserved for the compressed body, which is not needed any more."""
        exchange.body = body
        if packed:
            exchange.give_back(packed)
        self._route.handle(exchange)


class _InflatingMessages(InflatingRoute):
    """The body becomes an uncompressed message with its prefix."""

    def _inflation(self, exchange: Exchange) -> Inflation | None:
        body = exchange.body
        if len(body) < _PREFIX or body[0] != 1:
            return None  # not compressed, or not a message: the route's own affair
        if (length := int.from_bytes(body[1:_PREFIX], "big")) != len(body) - _PREFIX:
            raise MalformedRequest(f"the gRPC message announces {length} bytes, given {len(body) - _PREFIX}")
        return Inflation(self._encoding, memoryview(body)[_PREFIX:], self._limit, room=_PREFIX)

    def _go_on(self, exchange: Exchange, packed: int, body: bytearray) -> None:
        body[1:_PREFIX] = (len(body) - _PREFIX).to_bytes(4, "big")
        super()._go_on(exchange, packed, body)


class Waiting:
    """Owns the exchange while its body is decompressed."""

    def __init__(self, inflation: Inflation) -> None:
        self.inflation = inflation

    def abandoned(self) -> None:
        self.inflation.abandoned = True
