"""A request's body as HTTP/2 brings it, frame by frame, into one buffer.

A body that says its size (``content-length``, or the length in a gRPC message's prefix) goes straight into a buffer of
that size: joining 200 MB of pieces at the end would stop the event loop for a tenth of a second. Others are gathered as
pieces. Memory is reserved before it is used.
"""

from __future__ import annotations

import numpy as np

from isochrone.wire.budget import SMALL
from isochrone.wire.exchange import Buffer
from isochrone.wire.http2.stream import Stream

#: Bytes up to which a piece of a body is gathered with its neighbours.
_SMALL_PIECE = 1024
_GRPC_PREFIX = 5


class RequestBody:
    """A body in more than one piece."""

    __slots__ = ("_buffer", "_filled", "_gathered", "_pieces", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer: memoryview | None = None
        self._filled = 0
        self._pieces: list[bytes | bytearray] = []
        #: Bytes of ``_pieces``.
        self._gathered = 0

    def expect(self, size: int, first: bytes) -> bool:
        """The body has ``size`` bytes and begins with ``first``; False: there is no memory for it."""
        if size > SMALL:
            if not self._stream.reserve(size):
                return False
            # Not a bytearray, whose zeros would cost memory by what is announced: pages of this come as bytes do.
            self._buffer = np.empty(size, np.uint8).data
        return self.add(first)

    def add(self, payload: bytes) -> bool:
        """One more piece; False: there is no memory for it."""
        buffer = self._buffer
        size = len(payload)
        if buffer is not None:
            end = self._filled + size
            if end <= len(buffer):
                buffer[self._filled : end] = payload
                self._filled = end
                return True
            # More than was announced: the protocol above says what is wrong with that.
            self._buffer = None
            self._pieces = [bytes(buffer[: self._filled])]
            self._gathered = self._filled
        self._gathered += size
        lacking = self._gathered - self._stream.reserved
        if self._gathered > SMALL and lacking > 0 and not self._stream.reserve(max(lacking, self._gathered >> 2)):
            return False
        if size > _SMALL_PIECE:
            self._pieces.append(payload)
            return True
        # Frames of a few bytes would cost ten times their size as pieces of their own.
        last = self._pieces[-1] if self._pieces else None
        if type(last) is bytearray:
            last += payload
        else:
            self._pieces.append(bytearray(payload))
        return True

    def whole(self) -> Buffer:
        buffer = self._buffer
        if buffer is not None:
            return buffer if self._filled == len(buffer) else buffer[: self._filled]
        return b"".join(self._pieces)


def announced_size(content_length: int, is_grpc: bool, first: bytes) -> int:
    """The body's size as its head or its first bytes say; 0: they do not."""
    if content_length >= 0:
        return content_length
    if is_grpc and len(first) >= _GRPC_PREFIX:
        return _GRPC_PREFIX + int.from_bytes(first[1:_GRPC_PREFIX], "big")
    return 0
