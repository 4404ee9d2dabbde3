"""Messages with tensors over a socket: a head, a body, and a payload of bytes.

The head has the length of the body and of the payload; the payload begins at a multiple of 64 bytes, so that tensors in
it are aligned. ``FrameReader`` reads frames, one thread at a time; ``Outbox`` sends them, from any thread.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.worker.backends.processes.places import Packing

if TYPE_CHECKING:
    from isochrone.worker.backends.processes.places import Bytes

_HEAD = struct.Struct("<IQ")
_ALIGNMENT = 64
_PADDING = bytes(_ALIGNMENT)
_BUFFER_BYTES = 64 * 1024
#: Longer payloads are sent from where they lie.
_JOINED_BYTES = 32 * 1024

#: The buffers of a frame, in order.
Frame = list[Any]
_NO_BYTES: Bytes = np.empty(0, np.uint8)


class LinkBroken(Exception):
    """The other side has closed the link, or sent something invalid."""


def frame(body: bytes, payload: Packing | bytes = b"") -> Frame:
    if isinstance(payload, Packing) and payload.size <= _JOINED_BYTES:
        payload = payload.joined()
    size = len(payload) if isinstance(payload, bytes) else payload.size
    head = _HEAD.pack(len(body), size)
    if not size:
        return [head + body]
    padding = _PADDING[: -(len(head) + len(body)) % _ALIGNMENT]
    if isinstance(payload, bytes):
        return [b"".join((head, body, padding, payload))]
    return [b"".join((head, body, padding)), *payload.parts()]


class FrameReader:
    """The frames of one link."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        #: The bytes of the buffer that are received and not read.
        self._start = self._end = 0
        #: A frame that the buffer cannot hold, and how much of it is there.
        self._large: Bytes = _NO_BYTES
        self._received = 0

    def receive(self, flags: int = 0) -> tuple[memoryview | Bytes, Bytes] | None:
        """Body and payload of the next frame; None if the link has not all of it yet. The payload is the caller's; the
        body is valid until the next call."""
        if self._start == self._end and not self._large.size:
            # As a rule one read has one whole frame.
            self._start = 0
            self._end = count = self._received_into(self._buffer, flags)
            if count < 0:
                self._end = 0
                return None
            if count >= _HEAD.size:
                length, size = _HEAD.unpack_from(self._buffer)
                end = _HEAD.size + length
                if not size and end == count:
                    self._end = 0
                    return self._buffer[_HEAD.size : end], _NO_BYTES
                begin = end + -end % _ALIGNMENT
                if size and begin + size == count:
                    self._end = 0
                    # A copy: the model may keep it, and the buffer is used again.
                    return self._buffer[_HEAD.size : end], np.frombuffer(self._buffer[begin:count], np.uint8).copy()
        while True:
            found = self._complete()
            if found is not None:
                return found
            target = self._large.data[self._received :] if self._large.size else self._buffer[self._end :]
            count = self._received_into(target, flags)
            if count < 0:
                return None
            if self._large.size:
                self._received += count
            else:
                self._end += count

    def _received_into(self, target: Any, flags: int) -> int:
        """Negative: there is nothing yet."""
        try:
            count = self._link.recv_into(target, 0, flags)
        except (BlockingIOError, InterruptedError):
            return -1
        except OSError as error:
            raise LinkBroken(str(error)) from error
        if not count:
            raise LinkBroken("the other side has disconnected")
        return count

    def _complete(self) -> tuple[memoryview | Bytes, Bytes] | None:
        if self._large.size:
            if self._received < self._large.size:
                return None
            large, self._large = self._large, _NO_BYTES
            length, _, offset = _measures(large.data, 0)
            return large[_HEAD.size : _HEAD.size + length], large[offset:]
        held = self._end - self._start
        if not held:
            self._start = self._end = 0
            return None
        if held < _HEAD.size:
            self._make_room()
            return None
        length, size, offset = _measures(self._buffer, self._start)
        whole = offset + size
        if held >= whole:
            begin, self._start = self._start, self._start + whole
            body = self._buffer[begin + _HEAD.size : begin + _HEAD.size + length]
            # A copy: the model may keep it, and the buffer is used again.
            payload = (
                np.frombuffer(self._buffer[begin + offset : begin + whole], np.uint8).copy() if size else _NO_BYTES
            )
            return body, payload
        if whole <= _BUFFER_BYTES:
            self._make_room()
            return None
        try:
            self._large = np.empty(whole, np.uint8)
        except (MemoryError, ValueError) as error:
            raise LinkBroken(f"a message of {whole} bytes: {error}") from error
        self._large[:held] = np.frombuffer(self._buffer[self._start : self._end], np.uint8)
        self._received = held
        self._start = self._end = 0
        return None

    def _make_room(self) -> None:
        """Moves what is received to the beginning of the buffer."""
        if self._start:
            held = self._end - self._start
            self._buffer[:held] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, held


def _measures(data: memoryview, start: int) -> tuple[int, int, int]:
    """Length of the body, size of the payload, and where that begins."""
    length, size = _HEAD.unpack_from(data, start)
    end = _HEAD.size + length
    return length, size, end + (-end % _ALIGNMENT if size else 0)


class Outbox:
    """Sends frames over one link, each whole, from any thread.

    A thread that finds another one sending leaves its frame to that: nothing waits for a lock here, because a
    ``__del__`` of a model may send in the middle of another frame, on the same thread.
    """

    def __init__(self, link: socket.socket, stuck: Callable[[], None] | None = None) -> None:
        """``stuck``: called when the link takes no more for now; ``flush`` has to be called when it does. None: threads
        wait for the link."""
        self._link = link
        self._stuck = stuck
        self._flags = 0 if stuck is None else socket.MSG_DONTWAIT
        self._frames: deque[Frame] = deque()
        self._sending = threading.Lock()
        #: The rest of the frame that the link took a part of.
        self._rest: deque[memoryview] = deque()
        self.is_stuck = False

    def post(self, parts: Frame) -> None:
        self._frames.append(parts)
        if not self.is_stuck:
            self._send_all()

    def flush(self) -> None:
        """The link takes more."""
        self.is_stuck = False
        self._send_all()

    def _send_all(self) -> None:
        while (self._frames or self._rest) and not self.is_stuck and self._sending.acquire(blocking=False):
            try:
                self._send_some()
            finally:
                self._sending.release()

    def _send_some(self) -> None:
        while True:
            while self._rest:
                part = self._rest[0]
                try:
                    sent = self._link.send(part, self._flags)
                except (BlockingIOError, InterruptedError):
                    self.is_stuck = True
                    if self._stuck is not None:
                        self._stuck()
                    return
                except OSError:
                    # Nobody reads it any more; whoever reads this side finds out why.
                    self._frames.clear()
                    self._rest.clear()
                    return
                if sent < len(part):
                    self._rest[0] = part[sent:]
                else:
                    self._rest.popleft()
            try:
                self._rest.extend(memoryview(part) for part in self._frames.popleft())
            except IndexError:
                return
