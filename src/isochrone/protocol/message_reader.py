"""Cuts a streamed gRPC body into messages, on request: what is not taken stays unread.

Stands between a streaming call's bytes and its consumer. A large message goes straight into a buffer of its announced
size, for which the stream's memory is reserved first. A consumer that has enough stops taking and holds the stream's
window, so that a peer's bytes wait with the peer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isochrone.errors import PayloadTooLarge, Unavailable
from isochrone.wire.budget import SMALL
from isochrone.wire.exchange import Buffer

_PREFIX = 5


class MessageReader:
    """One direction of one call."""

    __slots__ = ("_buffer", "_filled", "_flag", "_large", "_limit", "_position", "_stream")

    def __init__(self, limit: int, stream: Any) -> None:
        #: Bytes a message may have.
        self._limit = limit
        #: The wire's stream, whose share of memory a large message takes.
        self._stream = stream
        self._buffer = bytearray()
        #: Where the next message begins in ``_buffer``.
        self._position = 0
        #: A large message that has come in part, its compressed flag, and how much has come.
        self._large: memoryview | None = None
        self._flag = 0
        self._filled = 0

    @property
    def is_empty(self) -> bool:
        """Whether all that came has been taken."""
        return self._large is None and self._position == len(self._buffer)

    def feed(self, data: bytes) -> None:
        large = self._large
        if large is not None and self._filled < len(large):
            count = min(len(large) - self._filled, len(data))
            large[self._filled : self._filled + count] = memoryview(data)[:count]
            self._filled += count
            data = data[count:]
        self._buffer += data

    def take(self) -> tuple[int, Buffer] | None:
        """(compressed flag, payload) of the next message; None when it is not whole yet."""
        if self._large is not None:
            return self._take_large()
        buffer, start = self._buffer, self._position
        if len(buffer) - start < _PREFIX:
            self._compact()
            return None
        length = int.from_bytes(buffer[start + 1 : start + _PREFIX], "big")
        if length > self._limit:
            raise PayloadTooLarge(f"a gRPC message of {length} bytes; max_body_bytes is {self._limit}")
        end = start + _PREFIX + length
        if end <= len(buffer):
            self._position = end
            return buffer[start], bytes(buffer[start + _PREFIX : end])
        if length > SMALL:
            self._begin_large(buffer[start], length, start + _PREFIX)
        else:
            self._compact()
        return None

    def _begin_large(self, flag: int, length: int, start: int) -> None:
        if not self._stream.reserve(length):
            raise Unavailable(self._stream.connection.listener.no_memory())
        come = memoryview(self._buffer)[start:]
        self._large = np.empty(length, np.uint8).data
        self._large[: len(come)] = come
        self._flag, self._filled = flag, len(come)
        come.release()
        self._buffer = bytearray()
        self._position = 0

    def _take_large(self) -> tuple[int, Buffer] | None:
        large = self._large
        if large is None or self._filled < len(large):
            return None
        self._large = None
        # From here on the consumer's own limits bound it.
        if self._stream.reserved >= len(large):
            self._stream.give_back(len(large))
        return self._flag, large

    def _compact(self) -> None:
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
