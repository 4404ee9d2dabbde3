"""Splits a streamed gRPC body into messages, which the consumer takes one by one.

A large message is received directly into a buffer of its announced size. A consumer that cannot take more messages
holds the stream's window, so that the peer stops sending.

Bytes that were received and not taken, and messages that were taken and not given back, count together against the
stream's memory, beyond the first 16 KiB. A message for which there is no memory is dropped as it arrives, and ``take``
raises in its place. Earlier messages, and later ones once there is memory again, are not lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isochrone.errors import PayloadTooLarge, Unavailable
from isochrone.wire.bodies.budget import SMALL
from isochrone.wire.exchange import Buffer

_PREFIX = 5
#: Bytes of taken messages that may stay in the buffer while later messages are taken.
_TAKEN = 64 * 1024


class MessageReader:
    """One direction of one call. Also the consumer's ``Memory``, for data that it derives from messages."""

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
        #: Largest size of a message in bytes.
        self._limit = limit
        #: The HTTP/2 stream; messages count against its memory.
        self._stream = stream
        self._buffer = bytearray()
        #: Start of the next message in ``_buffer``.
        self._position = 0
        #: A large message that is being received, its compressed flag, and the bytes received.
        self._large: memoryview | None = None
        self._flag = 0
        self._filled = 0
        #: Dropped messages that follow those in ``_buffer``; while there are any, all further messages are dropped.
        self._refused = 0
        #: Bytes of the last dropped message that have not arrived.
        self._skip = 0
        #: The received part of the prefix after it.
        self._partial = b""
        #: Bytes of the large message being received, and of messages that were taken and not given back.
        self._kept = 0
        #: Bytes reserved for ``_kept`` and ``_buffer``.
        self._reserved = 0

    @property
    def is_empty(self) -> bool:
        """Whether all received messages have been taken."""
        taken = self._position == len(self._buffer)
        return taken and self._large is None and not self._refused and not self._skip

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
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
        """(compressed flag, payload) of the next message; None: it is not complete.

        The caller calls ``give_back`` for the payload's bytes. Raises ``Unavailable`` in place of a message for which
        there was no memory; later messages can be taken.
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

    # Messages for which there is no memory.

    def _drop_behind(self, covered: int) -> None:
        """Drop the bytes after the last message that is complete in the first ``covered`` bytes of the buffer."""
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
        """Count and drop the messages that begin in ``data``."""
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
        """All dropped messages have been rejected: accept messages again."""
        if not self._refused:
            self._buffer += self._partial
            self._partial = b""

    # Memory.

    def keep(self, size: int) -> None:
        """Count a few bytes that the consumer derived from a message; they are reserved with the next message."""
        self._kept += size

    def reserve(self, size: int) -> bool:
        """Reserve ``size`` bytes that the consumer derives from a message."""
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
        # Updating the reservation for every small message would cost more than it saves.
        if not held or excess > SMALL:
            self._reserved -= excess
            self._stream.give_back(excess)

    def _cover(self) -> bool:
        """Reserve the bytes that are held and not yet reserved."""
        lacking = self._kept + len(self._buffer) - self._reserved
        if not self._stream.reserve(lacking):
            return False
        self._reserved += lacking
        return True
