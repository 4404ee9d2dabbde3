"""Whether a peer takes the bytes that wait for it: how many of those written to its connection have gone.

Stands beside a connection, HTTP/1.1's or HTTP/2's, which says what it writes and asks about once a second. A slow
reader must not be taken for a peer that reads nothing. So bytes in the kernel count as waiting, too: it takes more from
the transport only when a third of its buffer is free, which is a megabyte and more, a minute's worth at 20 KB/s.
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
    """One connection's bytes on their way out."""

    __slots__ = ("at", "passed", "waiting", "written")

    def __init__(self, tick: int) -> None:
        #: Bytes handed to the transport.
        self.written = 0
        #: How many of them the peer's side had taken when it was last looked, and how many had still to go.
        self.passed = 0
        self.waiting = 0
        #: Tick at which that last changed, or nothing waited in the transport, as when the connection is made.
        self.at = tick

    def look(self, transport: asyncio.Transport, tick: int) -> bool:
        """Whether anything has gone of what waited the last time."""
        buffered = transport.get_write_buffer_size()
        waited, self.waiting = self.waiting, buffered + in_kernel(transport)
        before, self.passed = self.passed, self.written - self.waiting
        moved = self.passed != before
        if moved or not buffered:
            self.at = tick
        return moved and waited > 0

    def rest(self, tick: int) -> None:
        """Nothing waits."""
        self.at, self.waiting = tick, 0


def in_kernel(transport: asyncio.Transport) -> int:
    """Bytes that the kernel has taken and the peer's has not acknowledged; 0 where it does not say."""
    socket = transport.get_extra_info("socket")
    if socket is None:
        return 0
    try:
        answer = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, _int.pack(0))
    except (OSError, ValueError):
        return 0  # not TCP, or closed
    return int(_int.unpack(answer)[0])
