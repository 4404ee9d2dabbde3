"""The client-side interface of the wire: an answer piece by piece (``Receiver``) or complete (``Response``).

The counterpart of ``exchange``. The gateway implements ``Receiver`` and needs no future or task per request; a command
that sends one request awaits a ``Response``.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from isochrone.errors import IsochroneError, PayloadTooLarge
from isochrone.wire.exchange import Buffer, Headers


class Receiver(Protocol):
    """Receives an answer: ``head``, any number of ``data``, then ``complete``; or ``failed`` at any point.

    Called on the event loop's thread, and never after ``complete``, ``failed`` or a cancel.
    """

    def head(self, status: int, headers: Headers) -> None: ...

    def data(self, data: Buffer) -> None: ...

    def complete(self, trailers: Headers) -> None: ...

    def failed(self, error: IsochroneError) -> None: ...

    def whole(self, status: int, headers: Headers, data: Buffer, trailers: Headers) -> None:
        """An answer that arrived in one piece, as most do. Receivers may override it, to save two calls."""
        self.head(status, headers)
        self.data(data)
        self.complete(trailers)


class Response(NamedTuple):
    """A complete answer."""

    status: int
    headers: Headers
    body: Buffer
    trailers: Headers

    def get(self, name: bytes) -> bytes | None:
        """The first value of a header; names are lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Gathering(Receiver):
    """A receiver that collects a ``Response`` for a coroutine that awaits it."""

    __slots__ = ("_headers", "_pieces", "_size", "_status", "future", "limit")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.future: asyncio.Future[Response] = loop.create_future()
        #: Largest size of the body in bytes.
        self.limit = limit
        self._status = 0
        self._headers: Headers = ()
        self._pieces: list[Buffer] = []
        self._size = 0

    def head(self, status: int, headers: Headers) -> None:
        self._status, self._headers = status, headers

    def data(self, data: Buffer) -> None:
        self._size += len(data)
        if self._size <= self.limit:
            self._pieces.append(data)
        else:
            self._pieces.clear()

    def complete(self, trailers: Headers) -> None:
        if self.future.done():
            return
        if self._size > self.limit:
            self.future.set_exception(too_large(self.limit))
            return
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self.future.set_result(Response(self._status, self._headers, body, trailers))

    def failed(self, error: IsochroneError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def too_large(limit: int) -> IsochroneError:
    return PayloadTooLarge(f"the answer's body is larger than max_body_bytes ({limit})")
