"""Servers that misbehave behind a gateway: small threads in the test's own process, one behaviour each.

Every one answers health checks and names its model in the repository index, so that it gets requests; what it does with
them is the test's choice. HTTP/1.1 by plain sockets, HTTP/2 by the ``h2`` package.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions

INDEX = json.dumps([{"name": "echo", "version": "1", "state": "READY"}]).encode()


class Connection:
    """One accepted connection, and the head and body of the request at hand."""

    def __init__(self, sock: socket.socket, over: threading.Event) -> None:
        self.sock = sock
        #: Set when the test is done: who waits may go home.
        self.over = over
        self.head = b""
        self.body = b""
        self._left = b""

    def read_request(self) -> bool:
        while b"\r\n\r\n" not in self._left:
            if not self._more():
                return False
        self.head, _, self._left = self._left.partition(b"\r\n\r\n")
        length = int(self.header(b"content-length") or b"0")
        while len(self._left) < length:
            if not self._more():
                return False
        self.body, self._left = self._left[:length], self._left[length:]
        return True

    def _more(self) -> bool:
        piece = self.sock.recv(1 << 16)
        self._left += piece
        return bool(piece)

    def header(self, name: bytes) -> bytes | None:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name:
                return value.strip()
        return None

    def answer(self, status: int, body: bytes = b"", *headers: bytes) -> None:
        lines = [b"HTTP/1.1 %d Whatever" % status, b"content-length: %d" % len(body), *headers]
        self.sock.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)

    def reset(self) -> None:
        """Closes with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


Behaviour = Callable[[Connection], None]


class Stop(Exception):
    """A behaviour's way to close its connection."""


@contextlib.contextmanager
def serving(handle: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """Accepts on a free loopback port, each connection in a thread of its own, until the block ends; gives the port."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    threads: list[threading.Thread] = []
    open_sockets: list[socket.socket] = []

    def work(sock: socket.socket) -> None:
        with contextlib.suppress(OSError, Stop, h2.exceptions.ProtocolError), sock:
            handle(sock, over)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                open_sockets.append(sock)
                thread = threading.Thread(target=work, args=(sock,))
                threads.append(thread)
                thread.start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(60)
        for sock in open_sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


@contextlib.contextmanager
def http_upstream(behaviour: Behaviour, *, index: bytes = INDEX) -> Iterator[int]:
    """A server with this behaviour for everything but health and index; gives its port."""

    def handle(sock: socket.socket, over: threading.Event) -> None:
        connection = Connection(sock, over)
        while connection.read_request():
            target = connection.head.split(b" ")[1]
            if target == b"/v2/health/ready":
                connection.answer(200)
            elif target == b"/v2/repository/index":
                connection.answer(200, index, b"content-type: application/json")
            else:
                behaviour(connection)

    with serving(handle) as port:
        yield port


class Call:
    """One HTTP/2 stream of a request that has come whole."""

    def __init__(self, sock: socket.socket, http2: h2.connection.H2Connection, stream_id: int, over: threading.Event):
        self.sock = sock
        self.http2 = http2
        self.stream_id = stream_id
        self.over = over
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    def headers_back(self, *fields: tuple[str, str], end: bool = False) -> None:
        self.http2.send_headers(self.stream_id, list(fields), end_stream=end)
        self.flush()

    def data(self, data: bytes, *, end: bool = False) -> None:
        self.http2.send_data(self.stream_id, data, end_stream=end)
        self.flush()

    def flush(self) -> None:
        self.sock.sendall(self.http2.data_to_send())


@contextlib.contextmanager
def grpc_upstream(behaviour: Callable[[Call], None]) -> Iterator[int]:
    """An HTTP/2 server with this behaviour for every request that has come whole; gives its port."""

    def handle(sock: socket.socket, over: threading.Event) -> None:
        http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        http2.initiate_connection()
        sock.sendall(http2.data_to_send())
        calls: dict[int, Call] = {}
        while piece := sock.recv(1 << 16):
            for event in http2.receive_data(piece):
                take(event, sock, http2, over, calls)
            sock.sendall(http2.data_to_send())

    def take(event: Any, sock: socket.socket, http2: Any, over: threading.Event, calls: dict[int, Call]) -> None:
        if isinstance(event, h2.events.RequestReceived):
            call = calls[event.stream_id] = Call(sock, http2, event.stream_id, over)
            call.headers = dict(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            calls[event.stream_id].body += event.data
            http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            behaviour(calls.pop(event.stream_id))

    with serving(handle) as port:
        yield port
