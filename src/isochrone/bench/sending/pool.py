"""Connections to one server, and the requests that wait for one: what both transports share.

A transport says which connection takes a request now. Connections that are lost are made again when requests wait. A
connection that cannot be made fails one request, so that each request has one attempt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

from isochrone.background_tasks import BackgroundTasks
from isochrone.bench.sending.sender import shortened
from isochrone.errors import IsochroneError, Unavailable


class Connection(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Connection)
ConnectionT = TypeVar("ConnectionT", contravariant=True)


class Waiting(Protocol[ConnectionT]):
    """A request that was given to the pool."""

    def begin(self, connection: ConnectionT) -> None:
        """Send it now."""
        ...

    def fail(self, error: str) -> None:
        """No connection could be made for it."""
        ...


class ConnectionPool(Generic[C]):
    """``most``: connections. ``at_start``: those that ``open`` makes; others are made when they are needed."""

    def __init__(self, most: int, at_start: int) -> None:
        self._most = most
        self._at_start = min(at_start, most)
        self.connections: list[C] = []
        self._connecting = 0
        #: In the order in which they came.
        self._waiting: deque[Waiting[C]] = deque()
        self._tasks = BackgroundTasks()
        self.is_closed = False

    async def open(self) -> None:
        """Raises ``Unavailable``."""
        # The first alone: a server that is not there is asked once.
        self._made(await self._connect())
        for connection in await asyncio.gather(*(self._connect() for _ in range(self._at_start - 1))):
            self._made(connection)

    def submit(self, request: Waiting[C]) -> None:
        """Begin it now, or when a connection takes it."""
        connection = None if self._waiting else self.take()
        if connection is None:
            self._waiting.append(request)
            self._grow()
        else:
            request.begin(connection)

    def serve_waiting(self) -> None:
        """A connection may have room."""
        while self._waiting and not self.is_closed:
            connection = self.take()
            if connection is None:
                return
            self._waiting.popleft().begin(connection)

    def forget(self, request: Waiting[C]) -> None:
        """A waiting request was given up."""
        self._waiting.remove(request)

    def lost(self, connection: C) -> None:
        """The connection takes no further request."""
        if connection in self.connections:
            self.connections.remove(connection)
        if not self.is_closed:
            self._grow()

    async def close(self) -> None:
        self.is_closed = True
        await self._tasks.end()
        for connection in list(self.connections):
            connection.close()
        # Transports close in the next turn of the loop.
        await asyncio.sleep(0)

    # Of a transport.

    def take(self) -> C | None:
        """The connection for the next request; None: it has to wait."""
        raise NotImplementedError

    async def connect(self) -> C:
        """Raises ``Unavailable``."""
        raise NotImplementedError

    def added(self, connection: C) -> None:
        """It was made: call ``lost`` when it is."""
        raise NotImplementedError

    # Growing.

    def _grow(self) -> None:
        if self._connecting < len(self._waiting) and self._connecting + len(self.connections) < self._most:
            self._connecting += 1
            self._tasks.start(self._add())

    async def _add(self) -> None:
        try:
            connection = await self._connect()
        except IsochroneError as error:
            self._connecting -= 1
            if self._waiting:
                self._waiting.popleft().fail(shortened(str(error)))
            self._grow()
            return
        except BaseException:
            self._connecting -= 1
            raise
        self._connecting -= 1
        self._made(connection)

    async def _connect(self) -> C:
        if self.is_closed:
            raise Unavailable("the generator is stopping")
        return await self.connect()

    def _made(self, connection: C) -> None:
        self.connections.append(connection)
        self.added(connection)
        self.serve_waiting()
