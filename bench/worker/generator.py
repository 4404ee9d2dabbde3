"""Sends HTTP/1.1 requests over kept-alive connections from one thread, on a schedule or in a closed loop.

Open loop: request i is due at a given instant whatever the server does, and its latency counts from that instant,
so that a slow server cannot make its own load lighter (coordinated omission). An epoll loop of its own rather than
asyncio: libuv's timers are whole milliseconds, too coarse beside a 10 ms deadline, and a request costs a third.
It waits only for the next due instant or an answer.
"""

import ctypes
import gc
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np

from bench.worker.conversations import ConversationFailed, HttpConversation

#: A request without an answer after this long fails, and its connection is closed.
GIVE_UP_NS = 5_000_000_000


@dataclass
class Outcome:
    """One entry per request, in the order they were due. Times in ns of the monotonic clock; status 0: no answer."""

    scheduled: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    #: The answer of every request that was not a 200, by its number.
    errors: dict[int, bytes] = field(default_factory=dict)
    #: Share of a core the generator itself used.
    cpu_share: float = 0.0
    #: Requests that were due while every connection was taken.
    waited_for_connection: int = 0


class Alarm:
    """A timerfd: epoll's own time-out is whole milliseconds, and Python 3.11 has no other way to one."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.file: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_ns: int) -> None:
        """Readable from that instant on; immediately if it has passed."""
        seconds, nanoseconds = divmod(at_ns, 1_000_000_000)
        self._libc.timerfd_settime(self.file, 1, struct.pack("llll", 0, 0, seconds, nanoseconds), None)

    def acknowledge(self) -> None:
        try:
            os.read(self.file, 8)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self.file)


@contextmanager
def no_collection() -> Iterator[None]:
    """The collector's pauses would be measured as the server's."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Connection:
    __slots__ = ("conversation", "number", "socket")

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.conversation = HttpConversation()
        self.number = -1


class Generator:
    """A pool of connections to one server. The most recently used free one is taken first: few stay warm."""

    def __init__(self, url: str, connections: int) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._epoll = select.epoll()
        self._alarm = Alarm()
        self._epoll.register(self._alarm.file, select.EPOLLIN)
        self._by_file: dict[int, _Connection] = {}
        self._free: list[_Connection] = []
        for _ in range(connections):
            self._open()

    def close(self) -> None:
        for connection in self._by_file.values():
            connection.socket.close()
        self._epoll.close()
        self._alarm.close()

    def open_loop(self, request: bytes, due_ns: list[int]) -> Outcome:
        """Sends the request at each instant of `due_ns` (offsets from now); returns when all are answered."""
        start = time.monotonic_ns() + 20_000_000
        due = [start + offset for offset in due_ns]
        count = len(due)
        outcome = Outcome(due, [0] * count, [0] * count, [0] * count)
        cpu_before = time.process_time_ns()
        upcoming, flying, armed_for, waiting = 0, 0, 0, deque[int]()
        with no_collection():
            while upcoming < count or flying or waiting:
                clock = time.monotonic_ns()
                while upcoming < count and due[upcoming] <= clock:
                    outcome.waited_for_connection += len(waiting) >= len(self._free)
                    waiting.append(upcoming)
                    upcoming += 1
                while waiting and self._free:
                    self._send(outcome, waiting.popleft(), request)
                    flying += 1
                if upcoming < count and armed_for != due[upcoming]:
                    armed_for = due[upcoming]
                    self._alarm.set(armed_for)
                flying -= self._receive_all(outcome)
            elapsed_ns = time.monotonic_ns() - start
        outcome.cpu_share = (time.process_time_ns() - cpu_before) / elapsed_ns
        return outcome

    def closed_loop(self, request: bytes, in_flight: int, seconds: float) -> Outcome:
        """Keeps so many in flight for so long."""
        outcome = Outcome()
        ends = time.monotonic_ns() + int(seconds * 1e9)
        flying = 0
        with no_collection():
            while True:
                while flying < in_flight and (clock := time.monotonic_ns()) < ends:
                    outcome.scheduled.append(clock)
                    for column in (outcome.sent, outcome.answered, outcome.status):
                        column.append(0)
                    self._send(outcome, len(outcome.sent) - 1, request)
                    flying += 1
                if not flying:
                    return outcome
                flying -= self._receive_all(outcome)

    def _receive_all(self, outcome: Outcome) -> int:
        """Waits for an answer or the alarm; how many requests ended."""
        events = self._epoll.poll(0.1)
        if not events:
            return self._give_up(outcome, time.monotonic_ns() - GIVE_UP_NS)
        return sum(self._receive(outcome, file) for file, _ in events)

    def _send(self, outcome: Outcome, number: int, request: bytes) -> None:
        connection = self._free.pop()
        connection.number = number
        outcome.sent[number] = time.monotonic_ns()
        # A few kilobytes on a connection with nothing unread always fit the socket's buffer.
        if connection.socket.send(request) != len(request):
            raise ConversationFailed("a request did not fit an empty socket buffer")

    def _receive(self, outcome: Outcome, file: int) -> int:
        """Takes what arrived; 1 if that ended a request."""
        connection = self._by_file.get(file)
        if connection is None:
            if file == self._alarm.file:
                self._alarm.acknowledge()
            return 0
        try:
            data = connection.socket.recv(65_536)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        number = connection.number
        if not data:
            self._replace(connection)
            return int(number >= 0)
        status = connection.conversation.feed(data)
        if not status:
            return 0
        outcome.answered[number] = time.monotonic_ns()
        outcome.status[number] = status
        if status != 200:
            outcome.errors[number] = connection.conversation.answer
        connection.number = -1
        self._free.append(connection)
        return 1

    def _give_up(self, outcome: Outcome, before: int) -> int:
        """Closes connections whose request was sent before an instant; how many."""
        stuck = [c for c in self._by_file.values() if c.number >= 0 and outcome.sent[c.number] < before]
        for connection in stuck:
            self._replace(connection)
        return len(stuck)

    def _open(self) -> None:
        connection = _Connection(self._address)
        self._by_file[connection.socket.fileno()] = connection
        self._epoll.register(connection.socket, select.EPOLLIN)
        self._free.append(connection)

    def _replace(self, connection: _Connection) -> None:
        self._epoll.unregister(connection.socket)
        del self._by_file[connection.socket.fileno()]
        if connection in self._free:
            self._free.remove(connection)
        connection.socket.close()
        self._open()


def poisson_schedule(requests_per_second: float, seconds: float, seed: int) -> list[int]:
    """Offsets in ns of Poisson arrivals; the same for the same seed."""
    generator = np.random.default_rng(seed)
    count = int(requests_per_second * seconds)
    return [int(offset) for offset in np.cumsum(generator.exponential(1e9 / requests_per_second, count))]
