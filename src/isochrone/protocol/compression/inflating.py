"""Decompression of request bodies before their route sees them; large bodies are decompressed on a thread.

``InflatingRoute`` wraps a route. Two threads do the work, so that the event loop keeps a core to itself. The
decompressed body counts against the process's memory budget. Its size is not known in advance, so it is reserved on the
loop slice by slice, before a thread fills the slice, and held until the request is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from isochrone.errors import Internal, IsochroneError, MalformedRequest, Unavailable
from isochrone.protocol.compression.codec import Inflation, is_identity
from isochrone.wire.bodies.budget import SMALL
from isochrone.wire.exchange import Exchange, Memory, Route

Fail = Callable[[Any, IsochroneError], None]
Done = Callable[[bytearray | IsochroneError], None]

#: Bytes that are reserved and inflated at a time: 5 to 20 ms of a thread.
_SLICE = 4 * 1024 * 1024
#: Bytes before a gRPC message: its compressed flag and its length.
_PREFIX = 5

_threads = ThreadPoolExecutor(2, thread_name_prefix="isochrone-inflate")


def inflate(inflation: Inflation, memory: Memory, done: Done) -> bytearray | None:
    """The body, if it is small; None: ``done`` is called with it on the loop, unless the inflation is abandoned.

    Raises if the body is malformed or too large, or if there is no memory for it. The caller gives back the memory that
    the body has reserved.
    """
    body = inflation.begin()
    if body is None:
        _Slices(inflation, memory, done).resume()
    elif len(body) > SMALL and not memory.reserve(len(body)):
        raise Unavailable(memory.no_memory())
    return body


class _Slices:
    """Decompression of one large body on a thread."""

    __slots__ = ("_done", "_inflation", "_memory", "_reserved", "_working")

    def __init__(self, inflation: Inflation, memory: Memory, done: Done) -> None:
        self._inflation = inflation
        self._memory = memory
        self._done = done
        self._reserved = 0
        #: Held while the work lasts.
        self._working = 0

    def resume(self) -> None:
        """Inflate one more slice."""
        # One byte over the limit shows that the body is too large.
        most = min(self._reserved + _SLICE, self._inflation.allowed + 1)
        working = self._inflation.working_bytes - self._working
        if not self._memory.reserve(most - self._reserved + working):
            raise Unavailable(self._memory.no_memory())
        self._reserved, self._working = most, self._working + working
        loop = asyncio.get_running_loop()
        loop.run_in_executor(_threads, self._inflation.resume, most).add_done_callback(self._worked)

    def _worked(self, future: asyncio.Future[bytearray | None]) -> None:
        error = future.exception()
        body = future.result() if error is None else None
        if self._inflation.abandoned:
            self._memory.give_back(self._reserved + self._working)
            return
        if error is None and body is None:
            try:
                self.resume()
                return
            except Unavailable as unavailable:
                error = unavailable
        if body is not None:
            self._memory.give_back(max(0, self._reserved - len(body)) + self._working)
            self._done(body)
            return
        self._memory.give_back(self._reserved + self._working)
        self._done(error if isinstance(error, IsochroneError) else Internal(f"{type(error).__name__}: {error}"))


def inflating_messages(route: Route, encoding: bytes, limit: int, fail: Fail) -> Route:
    """The route for unary gRPC calls whose messages may be compressed."""
    if is_identity(encoding) or route.streaming:
        return route
    return _InflatingMessages(route, encoding, limit, fail)


class InflatingRoute(Route):
    """Decompresses request bodies before ``route`` sees them; answers with ``fail`` if that is not possible."""

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
        """None: nothing to decompress. Some clients send the header with calls that have no body."""
        return Inflation(self._encoding, exchange.body, self._limit) if exchange.body else None

    def _finished(self, exchange: Exchange, packed: int, found: bytearray | IsochroneError) -> None:
        exchange.owner = None
        if isinstance(found, IsochroneError):
            self._fail(exchange, found)
        else:
            self._go_on(exchange, packed, found)

    def _go_on(self, exchange: Exchange, packed: int, body: bytearray) -> None:
        """``packed``: bytes reserved for the compressed body, which is no longer needed."""
        exchange.body = body
        if packed:
            exchange.give_back(packed)
        self._route.handle(exchange)


class _InflatingMessages(InflatingRoute):
    """Replaces a compressed gRPC message by the uncompressed message with its prefix."""

    def _inflation(self, exchange: Exchange) -> Inflation | None:
        body = exchange.body
        if len(body) < _PREFIX or body[0] != 1:
            return None  # not compressed, or not a message: the route handles it
        if (length := int.from_bytes(body[1:_PREFIX], "big")) != len(body) - _PREFIX:
            raise MalformedRequest(f"the gRPC message announces {length} bytes, given {len(body) - _PREFIX}")
        return Inflation(self._encoding, memoryview(body)[_PREFIX:], self._limit, room=_PREFIX)

    def _go_on(self, exchange: Exchange, packed: int, body: bytearray) -> None:
        body[1:_PREFIX] = (len(body) - _PREFIX).to_bytes(4, "big")
        super()._go_on(exchange, packed, body)


class Waiting:
    """The owner of an exchange while its body is decompressed."""

    def __init__(self, inflation: Inflation) -> None:
        self.inflation = inflation

    def abandoned(self) -> None:
        self.inflation.abandoned = True
