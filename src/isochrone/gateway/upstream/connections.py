"""Connections to one endpoint: HTTP/1.1 ones carry a request each, HTTP/2 ones many.

A request that finds no free connection waits for the next one, new or given back. Whether a lost request is sent again
is decided above; here it is only said whether the server can have begun it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import SECOND, now_ns
from isochrone.errors import ConnectionLost, IsochroneError, Unavailable
from isochrone.gateway.upstream import round_trips
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.gateway.upstream.credential import Credential
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.connect import connect_http1, connect_http2
from isochrone.wire.exchange import Buffer, Headers
from isochrone.wire.http1.client import Call, Http1ClientConnection
from isochrone.wire.http1.response_heads import ResponseHeads
from isochrone.wire.http2.client import Http2ClientConnection
from isochrone.wire.http2.flood import PLAIN_HEAD
from isochrone.wire.receiver import Receiver
from isochrone.wire.tls.client_tls import ClientTls
from isochrone.wire.turn import Turn

#: HTTP/2 connections to one endpoint: a second one when the first takes no further stream.
_MAX_HTTP2 = 4
#: Bytes of the head of a request that may share an HTTP/2 connection with those of other callers. A worker counts
#: larger header blocks and closes a connection that brings too many. The gateway adds fields of its own.
MOST_SHARED = PLAIN_HEAD - 1024
#: Requests that may wait for a connection.
_MAX_WAITING = 4096
#: Age of the newest connection at which its round trip is taken from another one.
_RENEWED_NS = 60 * SECOND
#: Seconds over which the gateway spreads them. One page finds the connections of all endpoints old, and a connection
#: takes some 0.1 ms of the loop.
_RENEWING_SECONDS = 10.0


class Sent(Protocol):
    """A request on its way."""

    def cancel(self) -> None: ...


class Waiting:
    """A request that waits for a connection."""

    __slots__ = ("_launch", "launched", "on_launched", "receiver")

    def __init__(self, receiver: Receiver, launch: Callable[[Http1ClientConnection | Http2ClientConnection], Sent]):
        self.receiver: Receiver | None = receiver
        self._launch = launch
        self.launched: Sent | None = None
        #: Called with what was launched.
        self.on_launched: Callable[[Any], None] | None = None

    def launch(self, connection: Http1ClientConnection | Http2ClientConnection) -> None:
        self.launched = self._launch(connection)
        if self.on_launched is not None:
            self.on_launched(self.launched)

    def cancel(self) -> None:
        self.receiver = None
        if self.launched is not None:
            self.launched.cancel()

    def fail(self, error: IsochroneError) -> None:
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.failed(error)


class Connections:
    """All connections of this process to one endpoint."""

    def __init__(
        self,
        upstream: Upstream,
        limits: WireLimits,
        turn: Turn | None = None,
        max_connections: int = 1024,
        tls: ClientTls | None = None,
        credential: Credential | None = None,
        refusal: str = "",
    ) -> None:
        self.upstream = upstream
        #: Why no connection is made; "": they are.
        self.refusal = refusal
        #: Of the gateway's own questions; callers' requests carry theirs.
        self.credential = credential
        self._tls = tls
        self._server_name = "" if tls is None else tls.server_name or upstream.name
        #: Each keeps a session, by which the next connection needs a short handshake.
        self._http1_tls = None if tls is None else tls.to_server()
        self._http2_tls = None if tls is None else tls.to_server(http2=True)
        self._limits = limits
        #: Shared with the listener: callers' and workers' connections take turns together.
        self._turn = turn
        self._max_connections = max_connections
        self._heads = ResponseHeads(limits)
        self._idle: list[Http1ClientConnection] = []
        self._http1: set[Http1ClientConnection] = set()
        self._http2: list[Http2ClientConnection] = []
        self._waiting_http1: deque[Waiting] = deque()
        self._waiting_http2: deque[Waiting] = deque()
        self._connecting_http1 = 0
        self._connecting_http2 = False
        self._newest: Http1ClientConnection | None = None
        self._newest_at = 0
        self._is_renewing = False
        self._tasks = BackgroundTasks()
        self._closed = False
        #: The IP address of the last connection, whether that is still open or not; "": there was none.
        self.peer_host = ""

    def own_fields(self) -> Headers:
        """Of a question of the gateway's own: its credential. What a caller asks for carries the caller's."""
        return () if self.credential is None else self.credential.fields()

    @property
    def scheme(self) -> bytes:
        return b"http" if self._tls is None else b"https"

    @property
    def open(self) -> int:
        return len(self._http1) + len(self._http2)

    def round_trip(self, now: int) -> float | None:
        """The shortest time to the endpoint and back in seconds, as the kernel measured it on the newest connection;
        None: it has not measured any. Opens another connection if that one is old.

        The figure of a connection that is used falls when the way gets shorter, but does not grow with it as long as
        requests are small (``round_trips``).
        """
        if self._newest is None or now - self._newest_at > _RENEWED_NS:
            self._renew()
        return self.last_round_trip

    @property
    def last_round_trip(self) -> float | None:
        """The same, of the newest connection however old it is."""
        newest = self._newest
        return round_trips.of_socket(newest.transport.get_extra_info("socket")) if newest is not None else None

    @property
    def is_crowded(self) -> bool:
        """Whether several connections of the gateway were ready at once lately: requests go out together."""
        return self._turn is not None and self._turn.staging

    # HTTP/1.1.

    def send(self, head: bytes, body: Sequence[Buffer], receiver: Receiver) -> Sent:
        """Sends a request on a connection of its own, which the receiver gives back by ``release``."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.is_reusable:
                return connection.send(head, body, receiver)

        def launch(connection: Http1ClientConnection | Http2ClientConnection) -> Sent:
            assert isinstance(connection, Http1ClientConnection)
            return connection.send(head, body, receiver)

        waiting = Waiting(receiver, launch)
        if self._wait(self._waiting_http1, waiting):
            self._grow_http1()
        return waiting

    def release(self, sent: Sent) -> None:
        """The answer is whole: its connection takes the next request."""
        if isinstance(sent, Waiting):
            if sent.launched is None:
                return
            sent = sent.launched
        connection = cast(Call, sent).connection
        if connection.is_reusable:
            self._serve_http1(connection)

    def _serve_http1(self, connection: Http1ClientConnection) -> None:
        while self._waiting_http1:
            waiting = self._waiting_http1.popleft()
            if waiting.receiver is not None:
                waiting.launch(connection)
                return
        self._idle.append(connection)

    def _grow_http1(self) -> None:
        wanted = min(len(self._waiting_http1), self._max_connections - len(self._http1))
        while self._connecting_http1 < wanted:
            self._connecting_http1 += 1
            self._tasks.start(self._connect_http1())

    async def _connect_http1(self) -> None:
        try:
            connection = await self._new_http1()
        except IsochroneError as error:
            self._connecting_http1 -= 1
            self._fail(self._waiting_http1, error)
            return
        self._connecting_http1 -= 1
        if self._keep_http1(connection):
            self._serve_http1(connection)

    def _check(self) -> None:
        if self.refusal:
            raise Unavailable(f"{self.upstream.address}: {self.refusal}")

    async def _new_http1(self) -> Http1ClientConnection:
        self._check()
        return await connect_http1(
            self.upstream.host,
            self.upstream.port,
            limits=self._limits,
            heads=self._heads,
            turn=self._turn,
            tls=self._http1_tls,
            server_name=self._server_name,
            timeout=self._limits.connect_timeout,
        )

    def _keep_http1(self, connection: Http1ClientConnection) -> bool:
        if self._closed:
            connection.close()
            return False
        self._http1.add(connection)
        self._newest, self._newest_at = connection, now_ns()
        self._note_peer(connection)
        connection.on_closed = lambda: self._lost_http1(connection)
        return True

    def _renew(self) -> None:
        # Where no connection is idle, requests open new ones or wait for one: nothing may be taken from them.
        if self._idle and not self._is_renewing and not self._closed:
            self._is_renewing = True
            self._tasks.start(self._renew_http1())

    async def _renew_http1(self) -> None:
        """Open another one, which requests use after all others: its window is small at first. It replaces the one
        that is idle for longest, mostly the last one of this kind."""
        try:
            await asyncio.sleep(random.uniform(0.0, _RENEWING_SECONDS))
            if len(self._idle) > 1:
                self._idle.pop(0).close()
            if self._is_full:
                return
            connection = await self._new_http1()
        except IsochroneError:
            return  # health checks decide about the endpoint
        finally:
            self._is_renewing = False
        if self._is_full or self._waiting_http1:
            # Requests took the room meanwhile, or the connections that they wait for are on their way.
            connection.close()
        elif self._keep_http1(connection):
            self._idle.insert(0, connection)

    @property
    def _is_full(self) -> bool:
        return len(self._http1) + self._connecting_http1 >= self._max_connections

    def _lost_http1(self, connection: Http1ClientConnection) -> None:
        self._http1.discard(connection)
        if connection is self._newest:
            self._newest = None
        if connection in self._idle:
            self._idle.remove(connection)
        if self._waiting_http1 and not self._closed:
            self._grow_http1()

    # HTTP/2.

    def open_stream(self, block: bytes, body: Sequence[Buffer], receiver: Receiver, *, end: bool = True) -> Sent:
        """Opens a stream; ``block`` comes from ``request_block``."""
        connection = self.http2()
        if connection is not None:
            return connection.open(block, body, receiver, end=end)

        def launch(connection: Http1ClientConnection | Http2ClientConnection) -> Sent:
            assert isinstance(connection, Http2ClientConnection)
            return connection.open(block, body, receiver, end=end)

        waiting = Waiting(receiver, launch)
        if self._wait(self._waiting_http2, waiting) and not self._connecting_http2:
            self._connecting_http2 = True
            self._tasks.start(self._connect_http2())
        return waiting

    def open_whole(self, block: bytes, payload: Buffer, receiver: Receiver) -> Sent:
        """``open_stream`` for a request that is whole."""
        for connection in self._http2:
            if len(connection.streams) < connection.peer_max_streams and not connection.going_away:
                return connection.open_whole(block, payload, receiver)
        return self.open_stream(block, (payload,) if len(payload) else (), receiver)

    def http2(self) -> Http2ClientConnection | None:
        """A connection that takes a stream; starts another one when none has room."""
        last = None
        for connection in self._http2:
            if connection.is_reusable:
                if connection.has_room:
                    return connection
                last = connection
        if last is not None and len(self._http2) < _MAX_HTTP2 and not self._connecting_http2:
            self._connecting_http2 = True
            self._tasks.start(self._connect_http2())
        return last

    async def _connect_http2(self) -> None:
        upstream = self.upstream
        try:
            self._check()
            connection = await connect_http2(
                upstream.host,
                upstream.grpc_port,
                limits=self._limits,
                turn=self._turn,
                tls=self._http2_tls,
                server_name=self._server_name,
                timeout=self._limits.connect_timeout,
            )
        except IsochroneError as error:
            self._connecting_http2 = False
            self._fail(self._waiting_http2, error)
            return
        self._connecting_http2 = False
        if self._closed:
            connection.close()
            return
        self._http2.append(connection)
        self._note_peer(connection)
        connection.on_going_away = lambda: self._lost_http2(connection)
        waiting, self._waiting_http2 = self._waiting_http2, deque()
        for one in waiting:
            if one.receiver is not None:
                one.launch(connection)

    def _lost_http2(self, connection: Http2ClientConnection) -> None:
        if connection in self._http2:
            self._http2.remove(connection)

    # Both.

    def _note_peer(self, connection: Http1ClientConnection | Http2ClientConnection) -> None:
        if peer := connection.transport.get_extra_info("peername"):
            self.peer_host = str(peer[0])

    def _wait(self, queue: deque[Waiting], waiting: Waiting) -> bool:
        if self._closed or len(queue) >= _MAX_WAITING:
            reason = "is gone" if self._closed else f"has {_MAX_WAITING} requests waiting for a connection"
            asyncio.get_running_loop().call_soon(
                waiting.fail, ConnectionLost(f"{self.upstream.address} {reason}", unprocessed=True)
            )
            return False
        queue.append(waiting)
        return True

    def _fail(self, queue: deque[Waiting], error: IsochroneError) -> None:
        """Nobody who waits is helped by this endpoint any more: they may go elsewhere."""
        waiting = list(queue)
        queue.clear()
        for one in waiting:
            one.fail(ConnectionLost(str(error), unprocessed=True))

    def drop_idle(self) -> None:
        """The endpoint was away: what is open may be half-dead."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Gives up everything; whoever waits is told."""
        self._closed = True
        self._tasks.cancel()
        for http1 in list(self._http1):
            http1.close()
        for http2 in list(self._http2):
            http2.close()
        error = ConnectionLost(f"{self.upstream.address} was removed", unprocessed=True)
        self._fail(self._waiting_http1, error)
        self._fail(self._waiting_http2, error)
