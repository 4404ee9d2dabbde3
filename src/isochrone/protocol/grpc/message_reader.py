"""Cuts a streamed gRPC body into messages, on request: what is not taken stays unread.

Stands between a streaming call's bytes and its consumer. A large message goes straight into a buffer of its announced
size. A consumer that has enough stops taking and holds the stream's window, so that a peer's bytes wait with the peer.

What has come and was not taken, and what was taken until the consumer gives it back, counts together against the
stream's memory; up to 16 KiB of it cost nothing. A message that there is no memory for is dropped as it comes, and
``take`` raises in its place: what came before it, and what comes after it when there is memory again, is not lost.
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

    __slots__ = (
        "_buffer",
        "_filled",
        "_flag",
        "_kept",
        "_large",
        "_limit",
        "_partial",
        "_position",
        "_refused",
        "_reserved",
        "_skip",
        "_stream",
    )

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
        #: Messages behind those in ``_buffer`` that were dropped; while there are any, all that comes is.
        self._refused = 0
        #: Bytes still to come of the message that was dropped last.
        self._skip = 0
        #: What has come of the prefix behind it.
        self._partial = b""
        #: Bytes of a large message that comes, and of messages that were taken and not given back.
        self._kept = 0
        #: What is reserved for ``_kept`` and ``_buffer``.
        self._reserved = 0

    @property
    def is_empty(self) -> bool:
        """Whether all that came has been taken."""
        taken = self._position == len(self._buffer)
        return taken and self._large is None and not self._refused and not self._skip

    def feed(self, data: bytes) -> None:
        """More bytes came."""
        large = self._large
        if large is not None and self._filled < len(large):
            count = min(len(large) - self._filled, len(data))
            large[self._filled : self._filled + count] = memoryview(data)[:count]
            self._filled += count
            data = data[count:]
        if self._refused:
            self._drop(data)
            return
        if self._skip:
            count = min(self._skip, len(data))
            self._skip -= count
            data = data[count:]
        before = len(self._buffer)
        self._buffer += data
        if len(self._buffer) + self._kept > self._reserved + SMALL and not self._cover():
            self._drop_behind(before)

    def take(self) -> tuple[int, Buffer] | None:
        """(compressed flag, payload) of the next message; None when it is not whole yet.

        The payload's bytes are the caller's to ``give_back``. Raises ``Unavailable`` in the place of a message that
        there was no memory for; those behind it can be taken.
        """
        if self._large is not None:
            return self._take_large()
        buffer, start = self._buffer, self._position
        if self._refused and start == len(buffer):
            self._refused -= 1
            self._end_of_dropping()
            raise Unavailable(self.no_memory())
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
            self._skip = length - len(come)
            if self._reserved:
                self._shrink()
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

    # Messages that there is no memory for.

    def _drop_behind(self, covered: int) -> None:
        """Drops what has come behind the last message that is whole in the first ``covered`` bytes of the buffer."""
        buffer, end = self._buffer, self._position
        while covered - end >= _PREFIX:
            after = end + _PREFIX + int.from_bytes(buffer[end + 1 : end + _PREFIX], "big")
            if after > covered:
                break
            end = after
        dropped = bytes(buffer[end:])
        del buffer[end:]
        self._drop(dropped)
        self._end_of_dropping()
        if self._reserved:
            self._shrink()

    def _drop(self, data: bytes) -> None:
        """Counts the messages that begin in ``data`` and forgets them."""
        position = min(self._skip, len(data))
        self._skip -= position
        data = self._partial + data[position:]
        position = 0
        while len(data) - position >= _PREFIX:
            self._refused += 1
            position += _PREFIX + int.from_bytes(data[position + 1 : position + _PREFIX], "big")
        self._skip += max(0, position - len(data))
        self._partial = data[position:]

    def _end_of_dropping(self) -> None:
        """All messages that were dropped have been refused: what comes now is taken again."""
        if not self._refused:
            self._buffer += self._partial
            self._partial = b""

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
