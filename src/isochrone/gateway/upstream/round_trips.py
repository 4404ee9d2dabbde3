"""The round trip of a connection, as the kernel has measured it: the time until the peer acknowledged what was sent.

The peer's kernel acknowledges, so that a process that computes does not look far. An acknowledgement may wait for the
answer that carries it, on Linux for up to 40 ms (a delayed acknowledgement). So the least round trip counts.

Linux keeps the least of the last 300 seconds (``net.ipv4.tcp_min_rtt_wlen``). An acknowledgement that may have been
delayed, that of a request of less than a segment, lowers it but does not raise it. So the least of a connection with
small requests alone never grows with the way. A new connection has that of its handshake, which is not delayed.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any

#: struct tcp_info of linux/tcp.h, which only ever grows: where it holds tcpi_rtt, a smoothed mean, and tcpi_min_rtt,
#: the least, which came with Linux 4.6. Both are microseconds.
_MEAN, _LEAST = 68, 148
_MICROSECONDS = struct.Struct("=I")
_LENGTH = _LEAST + _MICROSECONDS.size
#: What the kernel writes before the first sample.
_NONE = (0, 0xFFFFFFFF)


def of_tcp_info(info: bytes) -> float | None:
    """Seconds, from struct tcp_info as far as the kernel wrote it: the least round trip, or else the mean; None:
    nothing is measured."""
    for start in (_LEAST, _MEAN):
        if len(info) >= start + _MICROSECONDS.size:
            (found,) = _MICROSECONDS.unpack_from(info, start)
            if found not in _NONE:
                return float(found / 1e6)
    return None


def of_socket(connected: Any) -> float | None:
    """The same of a socket, or what a transport gives as its socket; None also for one that is not TCP, or closed, and
    on systems other than Linux."""
    if sys.platform != "linux" or connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        return of_tcp_info(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH))
    except (OSError, ValueError):
        # uvloop raises ValueError for a socket that is closed.
        return None
