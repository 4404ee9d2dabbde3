"""Assembles the body of an HTTP/2 request from its frames.

A body of announced size (``content-length``, or the length in a gRPC message's prefix) is received directly into a
buffer of that size: joining 200 MB of pieces at the end would block the event loop for a tenth of a second. Other
bodies are collected as pieces. Memory is reserved before it is used.
"""

from __future__ import annotations

from isochrone.wire.bodies.body_pool import BEYOND
from isochrone.wire.bodies.budget import SMALL
from isochrone.wire.exchange import Buffer
from isochrone.wire.http2.stream import Stream

#: Largest piece of a body that is joined with its neighbours.
_SMALL_PIECE = 1024
GRPC_PREFIX = 5


class RequestBody:
    """A body in more than one piece."""

    __slots__ = ("_buffer", "_filled", "_gathered", "_pieces", "_space", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer: memoryview | None = None
        #: The buffer and what lies beyond it.
        self._space = memoryview(b"")
        self._filled = 0
        self._pieces: list[bytes | bytearray] = []
        #: Bytes of ``_pieces``.
        self._gathered = 0

    def expect(self, size: int, first: bytes) -> bool:
        """Start a body of ``size`` bytes that begins with ``first``; False: there is no memory."""
        if size > SMALL:
            if not self._stream.reserve(size):
                return False
            self._space = self._stream.connection.share.budget.bodies.take(size, BEYOND)
            self._buffer = self._space[:size]
        return self.add(first)

    def add(self, payload: bytes) -> bool:
        """Add a piece; False: there is no memory."""
        buffer = self._buffer
        size = len(payload)
        if buffer is not None:
            end = self._filled + size
            if end <= len(buffer):
                buffer[self._filled : end] = payload
                self._filled = end
                return True
            # More than announced: the upper layer reports the error.
            self._buffer = None
            self._space = memoryview(b"")
            self._pieces = [bytes(buffer[: self._filled])]
            self._gathered = self._filled
        self._gathered += size
        lacking = self._gathered - self._stream.reserved
        if self._gathered > SMALL and lacking > 0 and not self._stream.reserve(max(lacking, self._gathered >> 2)):
            return False
        if size > _SMALL_PIECE:
            self._pieces.append(payload)
            return True
        # Frames of a few bytes would cost ten times their size as separate pieces.
        last = self._pieces[-1] if self._pieces else None
        if type(last) is bytearray:
            last += payload
        else:
            self._pieces.append(bytearray(payload))
        return True

    def space(self, size: int) -> memoryview | None:
        """The buffer for the next ``size`` bytes, and some more; None: there is none for so many."""
        buffer = self._buffer
        end = self._filled + size
        return self._space[self._filled : end + BEYOND] if buffer is not None and end <= len(buffer) else None

    def fill(self, count: int) -> None:
        """The first ``count`` bytes of ``space`` were received."""
        self._filled += count

    def whole(self) -> Buffer:
        buffer = self._buffer
        if buffer is not None:
            return buffer if self._filled == len(buffer) else buffer[: self._filled]
        return b"".join(self._pieces)


def announced_size(content_length: int, is_grpc: bool, first: bytes) -> int:
    """The body's size as announced by its head or its first bytes; 0: not announced."""
    if content_length >= 0:
        return content_length
    if is_grpc and len(first) >= GRPC_PREFIX:
        return GRPC_PREFIX + int.from_bytes(first[1:GRPC_PREFIX], "big")
    return 0
