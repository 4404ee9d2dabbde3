"""The other process of the measurements: sleeps in epoll, and answers each message with the instant when it woke up.

Run as a module; prints its port. Ends when its standard input is closed, so that it never outlives its parent.
"""

from __future__ import annotations

import select
import socket
import sys

from isochrone.clock import now_ns

#: Connections that may wait with data before they are accepted; any number does.
_FAST_OPEN_QUEUE = 16


def serve() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, select.epoll() as poller:
        # Allowed while the server side of fast open is off; then it has no effect.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, _FAST_OPEN_QUEUE)
        print(listener.getsockname()[1], flush=True)
        poller.register(listener, select.EPOLLIN)
        poller.register(sys.stdin, select.EPOLLIN)
        connections: dict[int, socket.socket] = {}
        while True:
            for descriptor, _ in poller.poll():
                woken = now_ns()
                if descriptor == sys.stdin.fileno():
                    for connection in connections.values():
                        connection.close()
                    return
                if descriptor == listener.fileno():
                    connection = _accept(listener)
                    connections[connection.fileno()] = connection
                    poller.register(connection, select.EPOLLIN)
                elif not _answer(connections[descriptor], woken):
                    poller.unregister(descriptor)
                    connections.pop(descriptor).close()


def _accept(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _answer(connection: socket.socket, woken: int) -> bool:
    try:
        if not connection.recv(64):
            return False
        connection.sendall(woken.to_bytes(8, "little"))
    except ConnectionError:
        return False
    return True


if __name__ == "__main__":
    serve()
