"""A port that accepts plain and encrypted connections, while a fleet changes from one to the other.

The first byte of a connection tells which it is: the record of a TLS handshake begins with 22, which no method of HTTP
and no preface of HTTP/2 does. It is looked at in the socket's buffer, before the event loop has the connection.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable

from isochrone.background_tasks import BackgroundTasks

_HANDSHAKE = b"\x16"
#: Seconds for the first byte, and connections that wait for it at the same time.
_FIRST_BYTE_SECONDS = 10.0
_MOST_WAITING = 4096
#: Connections taken in one turn of the loop.
_AT_ONCE = 64
#: The process or the machine has too many files or too little memory: the connections stay in the kernel's queue.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: Seconds until connections are accepted again; until then the port would be readable in every turn of the loop.
_PAUSE = 1.0


class PermissiveServer:
    """Has what ``Listener`` uses of ``asyncio.Server``."""

    def __init__(
        self, bound: asyncio.Server, factory: Callable[[], asyncio.Protocol], tls: ssl.SSLContext, backlog: int
    ) -> None:
        """``bound``: has its sockets, and does not serve."""
        self._bound = bound
        # Those of a server cannot be accepted from; these are the same ones for the kernel.
        self.sockets = tuple(socket.socket(fileno=os.dup(each.fileno())) for each in bound.sockets)
        self._factory, self._tls, self._backlog = factory, tls, backlog
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._paused: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks = BackgroundTasks()

    async def start_serving(self) -> None:
        """Raises ``OSError`` if another process listens on the port."""
        for each in self.sockets:
            each.setblocking(False)
            each.listen(self._backlog)
            self._loop.add_reader(each.fileno(), self._accept, each)

    def close(self) -> None:
        """Stop accepting. Connections that have no protocol yet continue, as those of ``asyncio.Server`` do."""
        for pause in self._paused.values():
            pause.cancel()
        self._paused.clear()
        for each in self.sockets:
            if each.fileno() >= 0:
                self._loop.remove_reader(each.fileno())
                each.close()
        self._bound.close()

    @property
    def beginning(self) -> int:
        """Connections that have no protocol yet: they wait for their first byte, or for the end of a handshake."""
        return len(self._waiting) + len(self._tasks)

    async def end(self) -> None:
        """After ``close``: close the connections that have no protocol yet."""
        for connection in list(self._waiting):
            self._drop(connection)
        await self._tasks.end()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listening.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._loop.remove_reader(listening.fileno())
                    self._paused[listening] = self._loop.call_later(_PAUSE, self._resume, listening)
                return  # otherwise none waits, or it is gone again
            connection.setblocking(False)
            if len(self._waiting) >= _MOST_WAITING:
                connection.close()
                continue
            self._waiting[connection] = self._loop.call_later(_FIRST_BYTE_SECONDS, self._drop, connection)
            self._loop.add_reader(connection.fileno(), self._began, connection)

    def _resume(self, listening: socket.socket) -> None:
        del self._paused[listening]
        self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _began(self, connection: socket.socket) -> None:
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._forget(connection)
        if not first:
            connection.close()
            return
        taking = self._tasks.start(self._take(connection, self._tls if first == _HANDSHAKE else None))
        # A task that is cancelled before its first step runs no line of its own.
        taking.add_done_callback(lambda ended: connection.close() if ended.cancelled() else None)

    async def _take(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection, ssl=tls)
        except OSError:
            connection.close()  # a handshake that failed: the context has said why

    def _drop(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection.fileno())
        self._waiting.pop(connection).cancel()
