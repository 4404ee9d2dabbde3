"""Messages over loopback TCP: how long a sleeping process takes to wake up, a round trip, a first answer."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from isochrone.clock import now_ns
from isochrone.doctor.facts import Times
from isochrone.doctor.measuring.samples import times_of

#: Seconds before each message, so that the peer sleeps and its CPU is idle.
_PAUSE = 0.001
_WAKE_UPS = 400
_ROUND_TRIPS = 3000
_FIRST_ANSWERS = 200
#: Seconds until the peer must have answered.
_TIMEOUT = 10
_MESSAGE = b"?"
_NO_LINGER = struct.pack("ii", 1, 0)


@contextmanager
def started_peer() -> Iterator[int]:
    """Start a peer, and give its port."""
    words = [sys.executable, "-m", "isochrone.doctor.measuring.peer"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise OSError("the second process of the measurement did not start")
            yield int(line)
        finally:
            process.stdin.close()


def wake_up(port: int) -> Times:
    """From sending a byte to the moment when the peer, which slept, runs."""
    with _connected(port) as connection:
        found = []
        for _ in range(_WAKE_UPS):
            time.sleep(_PAUSE)
            sent = now_ns()
            connection.sendall(_MESSAGE)
            found.append(int.from_bytes(_receive(connection), "little") - sent)
    return times_of(found)


@contextmanager
def shallow_idle() -> Iterator[None]:
    """Forbid deep C-states meanwhile; the kernel forgets it when the file is closed (kernel docs, pm_qos_interface)."""
    with open("/dev/cpu_dma_latency", "wb", buffering=0) as file:
        file.write(struct.pack("i", 0))
        yield


def round_trip(port: int) -> Times:
    """Messages one after the other, without a pause."""
    with _connected(port) as connection:
        found = []
        for _ in range(_ROUND_TRIPS):
            sent = now_ns()
            connection.sendall(_MESSAGE)
            _receive(connection)
            found.append(now_ns() - sent)
    return times_of(found)


def first_answer(port: int, fast_open: bool) -> Times:
    """From opening a connection to the first answer."""
    found = []
    for _ in range(_FIRST_ANSWERS):
        with _opened() as connection:
            begun = now_ns()
            if fast_open:
                connection.sendto(_MESSAGE, socket.MSG_FASTOPEN, ("127.0.0.1", port))
            else:
                connection.connect(("127.0.0.1", port))
                connection.sendall(_MESSAGE)
            _receive(connection)
            found.append(now_ns() - begun)
    # The first connection only fetches the cookie of fast open.
    return times_of(found[1:])


@contextmanager
def _connected(port: int) -> Iterator[socket.socket]:
    with _opened() as connection:
        connection.connect(("127.0.0.1", port))
        yield connection


def _opened() -> socket.socket:
    """A socket whose calls end after a while by the kernel's time-outs: Python's own call poll before each read."""
    connection = socket.socket()
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _TIMEOUT, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Closing with a reset leaves no TIME_WAIT socket behind.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    return connection


def _receive(connection: socket.socket) -> bytes:
    """An answer of eight bytes, which loopback delivers whole."""
    answer = connection.recv(8)
    if len(answer) != 8:
        raise OSError("the second process of the measurement ended")
    return answer
