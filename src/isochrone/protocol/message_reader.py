"""Cuts a streamed gRPC body into messages, on request: what is not taken stays unread.

Stands between a streaming call's bytes and its consumer. A large message goes straight into a buffer of its announced
size. A consumer that has enough stops taking and holds the stream's window, so that a peer's bytes wait with the peer.

What has come and was not taken, and what was taken until the consumer gives it back, counts together against the
stream's memory; up to 16 KiB of it cost nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isochrone.errors import PayloadTooLarge, Unavailable
from isochrone.wire.budget import SMALL
from isochrone.wire.exchange import Buffer

_PREFIX = 5
#: Bytes of taken messages that may stay in the buffer while others behind them are taken.
_TAKEN = 64 * 1024


class MessageReader:
    """One direction of one call. Its consumer's ``Memory``, too: what it makes of a message counts with that."""

    __slots__ = ("_buffer", "_filled", "_flag", "_kept", "_large", "_limit", "_position", "_reserved", "_stream")

    def __init__(self, limit: int, stream: Any) -> None:
        #: Bytes a message may have.
        self._limit = limit
        #: The wire's stream, whose share of memory messages take.
        self._stream = stream
        self._buffer = bytearray()
        #: Where the next message begins in ``_buffer``.
        self._position = 0
        #: A large message that has come in part, its compressed flag, and how much has come.
        self._large: memoryview | None = None
        self._flag = 0
        self._filled = 0
        #: Bytes of a large message that comes, and of messages that were taken and not given back.
        self._kept = 0
        #: What is reserved for ``_kept`` and ``_buffer``.
        self._reserved = 0

    @property
    def is_empty(self) -> bool:
        """Whether all that came has been taken."""
        return self._large is None and self._position == len(self._buffer)

    def feed(self, data: bytes) -> None:
        """More bytes came; raises when there is no memory for them."""
        large = self._large
        if large is not None and self._filled < len(large):
            count = min(len(large) - self._filled, len(data))
            large[self._filled : self._filled + count] = memoryview(data)[:count]
            self._filled += count
            data = data[count:]
        self._buffer += data
        if len(self._buffer) + self._kept > self._reserved + SMALL:
            self._grow()

    def take(self) -> tuple[int, Buffer] | None:
        """(compressed flag, payload) of the next message; None when it is not whole yet.

        The payload's bytes are the caller's to ``give_back``.
        """
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
            flag, payload = buffer[start], bytes(buffer[start + _PREFIX : end])
            self._position = end
            self._kept += length
            if end > _TAKEN:
                self._compact()
            return flag, payload
        if length > SMALL:
            self._begin_large(buffer[start], length, start + _PREFIX)
        else:
            self._compact()
        return None

    def _begin_large(self, flag: int, length: int, start: int) -> None:
        come = memoryview(self._buffer)[start:]
        self._buffer = bytearray()
        self._position = 0
        if not self.reserve(length):
            raise Unavailable(self.no_memory())
        self._large = np.empty(length, np.uint8).data
        self._large[: len(come)] = come
        self._flag, self._filled = flag, len(come)

    def _take_large(self) -> tuple[int, Buffer] | None:
        large = self._large
        if large is None or self._filled < len(large):
            return None
        self._large = None
        return self._flag, large

    def _compact(self) -> None:
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
            if self._reserved:
                self._shrink()

    # Memory.

    def keep(self, size: int) -> None:
        """The consumer has made a few bytes of a message: memory for them is asked for with the next."""
        self._kept += size

    def reserve(self, size: int) -> bool:
        """The consumer makes ``size`` bytes of a message."""
        self._kept += size
        if self._kept + len(self._buffer) <= self._reserved + SMALL or self._cover():
            return True
        self._kept -= size
        return False

    def give_back(self, size: int) -> None:
        self._kept -= size
        if self._reserved:
            self._shrink()

    def no_memory(self) -> str:
        return str(self._stream.no_memory())

    def _grow(self) -> None:
        if not self._cover():
            raise Unavailable(self.no_memory())

    def _shrink(self) -> None:
        held = self._kept + len(self._buffer)
        excess = self._reserved - held
        # To follow every small message would cost more than it is worth.
        if not held or excess > SMALL:
            self._reserved -= excess
            self._stream.give_back(excess)

    def _cover(self) -> bool:
        """Reserves what is held and not reserved yet."""
        lacking = self._kept + len(self._buffer) - self._reserved
        if not self._stream.reserve(lacking):
            return False
        self._reserved += lacking
        return True
