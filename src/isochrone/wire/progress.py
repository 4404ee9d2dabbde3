"""Write progress: whether a peer reads the bytes that were written to its connection.

A connection, HTTP/1.1 or HTTP/2, counts the bytes that it writes and checks about once a second. A slow reader must not
be mistaken for a peer that reads nothing. So bytes in the kernel's buffer count as unread too: the kernel takes more
from the transport only when a third of its buffer is free, which can be a megabyte: a minute at 20 KB/s.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios

_int = struct.Struct("i")

#: Bytes of a request body that must arrive within ``body_timeout``: fewer are a drip, not progress.
BODY_PROGRESS = 16 * 1024


class Progress:
    """The write progress of one connection."""

    __slots__ = ("at", "passed", "waiting", "written")

    def __init__(self, tick: int) -> None:
        #: Bytes written to the transport.
        self.written = 0
        #: Bytes that the peer had acknowledged at the last check, and bytes that it had not.
        self.passed = 0
        self.waiting = 0
        #: Tick of the last change, or of the last check with an empty transport buffer.
        self.at = tick

    def update(self, transport: asyncio.Transport, tick: int) -> bool:
        """Check the progress; returns whether the peer has acknowledged any of the bytes unread at the last check."""
        buffered = transport.get_write_buffer_size()
        waited, self.waiting = self.waiting, buffered + in_kernel(transport)
        before, self.passed = self.passed, self.written - self.waiting
        moved = self.passed != before
        if moved or not buffered:
            self.at = tick
        return moved and waited > 0

    def clear(self, tick: int) -> None:
        """Record that no byte is unread."""
        self.at, self.waiting = tick, 0


def in_kernel(transport: asyncio.Transport) -> int:
    """Bytes in the kernel's send buffer that the peer has not acknowledged; 0 if unknown."""
    socket = transport.get_extra_info("socket")
    if socket is None:
        return 0
    try:
        answer = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, _int.pack(0))
    except (OSError, ValueError):
        return 0  # not TCP, or closed
    return int(_int.unpack(answer)[0])
