"""`python -m bench.load_tool.known_server`: a server of the Open Inference Protocol whose service times are known.

One server, first come, first served: request i is answered s(i) after it arrived or after the answer before it,
whichever is later, and s(i) is drawn by seed. So a calculation (`lindley`) can say how long each request takes. It
begins at s(0) again when no connection is open. One thread, epoll and a timerfd.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
import time
from collections import deque

from bench.load_tool.lindley import service_times_ns
from bench.worker.generator import Alarm, no_collection

MODEL = "known"
_METADATA = (
    b'{"name":"known","versions":["1"],"platform":"","inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1]}],'
    b'"outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1]}]}'
)
_ANSWER = (
    b'{"model_name":"known","model_version":"1",'
    b'"outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1],"data":[0]}]}'
)
#: Service times that one run can use.
_MOST_REQUESTS = 200_000


class KnownServer:
    def __init__(self, port: int, seed: int, mean_ns: int) -> None:
        self._services = service_times_ns(seed, mean_ns, _MOST_REQUESTS)
        self._next = 0
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._listener.setblocking(False)
        self._connections: dict[int, socket.socket] = {}
        self._unread: dict[int, bytes] = {}
        #: When each request is answered, and on which connection; in order.
        self._due: deque[tuple[int, socket.socket]] = deque()
        self._busy_until = 0
        self._alarm = Alarm()
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(self._alarm.file, select.EPOLLIN)

    def serve(self) -> None:
        """Until the process is ended."""
        with no_collection():
            while True:
                for file, _ in self._epoll.poll():
                    if file == self._alarm.file:
                        self._alarm.acknowledge()
                    elif file == self._listener.fileno():
                        self._accept()
                    else:
                        self._read(self._connections[file])
                self._answer()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[connection.fileno()] = connection
        self._unread[connection.fileno()] = b""
        self._epoll.register(connection, select.EPOLLIN)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        unread = self._unread[connection.fileno()] + data
        head, end, rest = unread.partition(b"\r\n\r\n")
        length = _content_length(head) if end else 0
        if not end or len(rest) < length:
            self._unread[connection.fileno()] = unread
            return
        self._unread[connection.fileno()] = rest[length:]
        if head.startswith(b"POST"):
            self._arrived(connection)
        else:
            _send(connection, _METADATA)

    def _arrived(self, connection: socket.socket) -> None:
        self._busy_until = max(self._busy_until, time.monotonic_ns()) + self._services[self._next]
        self._next += 1
        self._due.append((self._busy_until, connection))
        if len(self._due) == 1:
            self._alarm.set(self._busy_until)

    def _answer(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic_ns():
            _, connection = self._due.popleft()
            _send(connection, _ANSWER)
        if self._due:
            self._alarm.set(self._due[0][0])

    def _close(self, connection: socket.socket) -> None:
        self._epoll.unregister(connection)
        del self._connections[connection.fileno()], self._unread[connection.fileno()]
        connection.close()
        if not self._connections:
            self._next = self._busy_until = 0
            self._due.clear()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _send(connection: socket.socket, body: bytes) -> None:
    try:
        connection.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
    except OSError:
        # The caller has gone; its end of the connection is read next.
        pass


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.load_tool.known_server", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mean-ms", type=float, default=4.0, help="of service times (default: %(default)s)")
    given = parser.parse_args()
    KnownServer(given.port, given.seed, round(given.mean_ms * 1e6)).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
