"""A listening socket for HTTP/1.1 and HTTP/2, which are distinguished by the first bytes (over TLS also by ALPN).

The listener owns its connections: it limits their number, checks timeouts about once a second (one timer for ten
thousand idle connections), and when it stops, lets requests in progress finish.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import cast

import msgspec

from isochrone.settings.wire_limits import LISTEN_BACKLOG, WireLimits
from isochrone.wire.bodies.budget import MemoryBudget
from isochrone.wire.exchange import Application, Head, Headers
from isochrone.wire.http1.request_heads import RequestHeads
from isochrone.wire.http1.server import Http1Connection
from isochrone.wire.http2.frames import PREFACE
from isochrone.wire.http2.server import Http2ServerConnection
from isochrone.wire.http2.shared_heads import SharedHeads
from isochrone.wire.listening.file_descriptors import warn_if_exhausted
from isochrone.wire.tls.contexts import ServerTls, peer_identity
from isochrone.wire.tls.permissive_server import PermissiveServer
from isochrone.wire.turn import Turn

#: Seconds between sweeps; also the unit of ``tick``.
_SWEEP = 1.0
#: Connections checked in one turn of the loop: some 1 µs each.
_CHECKED_PER_TURN = 256
#: Seconds without progress after which a connection counts as stalled.
_STALLED = 5.0
#: Seconds in which a recently used connection may send one more request when the server stops.
_LAST_CHANCE = 0.25
#: What every TLS connection begins with: the type of its first record, and the first byte of its version.
_TLS_HANDSHAKE = b"\x16\x03"
#: Paths whose errors are objects, as OpenAI's clients expect them; the protocol's are strings.
_OPENAI = b"/v1/"
_JSON: Headers = ((b"content-type", b"application/json"),)

Connection = Http1Connection | Http2ServerConnection


class Listener:
    """Accepts connections for one application on one address."""

    def __init__(
        self,
        application: Application,
        limits: WireLimits | None = None,
        tls: ssl.SSLContext | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.application = application
        self.limits = limits or WireLimits()
        #: Shared by the listeners of a process.
        self.budget = budget or MemoryBudget(self.limits.max_buffered_bytes)
        self.tls = tls
        self.heads = RequestHeads(self.limits)
        self.shared_heads = SharedHeads(self.limits.max_memoised_head_bytes)
        self.loop = asyncio.get_running_loop()
        self.turn = Turn(self.loop)
        #: Seconds since start, counted by sweeps: connections stamp their activity with it without reading a clock.
        self.tick = 0
        self.connections: set[Connection | _Sniffer] = set()
        #: Connections whose peer has read none of the unsent bytes for ``_STALLED`` seconds.
        self.stalled = 0
        #: Connections rejected because of max_connections.
        self.refused = 0
        self._server: asyncio.Server | PermissiveServer | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._checking: asyncio.Handle | None = None
        self._empty: asyncio.Event | None = None
        #: New connections may send one request.
        self.is_stopping = False

    async def start(self, host: str, port: int, *, reuse_port: bool = False, accepting: bool = True) -> int:
        """Listen, and return the port (for port 0, the assigned one).

        Without ``accepting`` the port is only reserved, and connections are refused until ``accept``.
        """
        is_permissive = isinstance(self.tls, ServerTls) and self.tls.permissive
        server: asyncio.Server | PermissiveServer = await self.loop.create_server(
            lambda: _Sniffer(self),
            host,
            port,
            ssl=self.tls,
            backlog=LISTEN_BACKLOG,
            reuse_port=reuse_port or None,
            start_serving=accepting and not is_permissive,
        )
        if is_permissive:
            # uvloop's servers are no asyncio.Server by type.
            assert self.tls is not None
            server = PermissiveServer(cast("asyncio.Server", server), lambda: _Sniffer(self), self.tls, LISTEN_BACKLOG)
            if accepting:
                await server.start_serving()
        self._server = server
        self._sweeper = self.loop.call_later(_SWEEP, self._sweep)
        return cast(int, server.sockets[0].getsockname()[1])

    async def start_unix(self, path: str) -> None:
        """Listen on a Unix-domain socket; the path of an earlier process is taken over."""
        self._server = await self.loop.create_unix_server(lambda: _Sniffer(self), path, backlog=1024)
        self._sweeper = self.loop.call_later(_SWEEP, self._sweep)

    async def accept(self) -> None:
        """Start to accept connections. Raises ``OSError`` if another process already listens on the port."""
        if self._server is not None:
            await self._server.start_serving()

    def close(self) -> None:
        """Stop accepting. Existing connections continue."""
        if self._server is not None:
            self._server.close()

    async def stop(self, grace: float) -> int:
        """Stop accepting, let connections finish within ``grace`` seconds, and abort the rest; returns their number."""
        self.close()
        self.is_stopping = True
        permissive = self._server if isinstance(self._server, PermissiveServer) else None
        in_use = [
            connection
            for connection in self.connections
            if isinstance(connection, Http1Connection | _Sniffer) and connection.offer_last_request()
        ]
        ending = self.connections - set(in_use)
        for connection in ending:
            connection.shut_down()
        if in_use or (permissive is not None and permissive.beginning):
            await asyncio.sleep(min(_LAST_CHANCE, grace))
            if permissive is not None:
                await permissive.end()
            # Connections whose first bytes have come meanwhile are others than before.
            for connection in self.connections - ending:
                connection.shut_down()
        if self.connections:
            self._empty = asyncio.Event()
            try:
                async with asyncio.timeout(grace):
                    await self._empty.wait()
            except TimeoutError:
                pass
        left = list(self.connections)
        for connection in left:
            connection.transport.abort()
        for handle in (self._sweeper, self._checking):
            if handle is not None:
                handle.cancel()
        return len(left)

    def forget(self, connection: Connection | _Sniffer) -> None:
        self.connections.discard(connection)
        if not self.connections and self._empty is not None:
            self._empty.set()

    def error_body(self, message: str, status: int = 400, head: Head | None = None) -> tuple[bytes, Headers]:
        """The body and headers of an error that the wire itself answers with, in the format of the head's protocol."""
        error: object = message
        if head is not None and head.target.startswith(_OPENAI):
            kind = "invalid_request_error" if status < 500 else "server_error"
            error = {"message": message, "type": kind, "param": None, "code": None}
        return msgspec.json.encode({"error": error}), _JSON

    def no_memory(self) -> str:
        """The error message for a request whose connection holds its share of memory."""
        limit = self.limits.max_buffered_bytes
        return f"this connection holds its share of max_buffered_bytes ({limit}): read the answers, then retry"

    def _sweep(self) -> None:
        # Scheduled first, so that an exception in a connection does not end the sweeps.
        self._sweeper = self.loop.call_later(_SWEEP, self._sweep)
        self.tick += 1
        warn_if_exhausted()
        if isinstance(self.tls, ServerTls):
            self.tls.refresh()
        # After a stall the last sweep may be under way: two would check twice as many in one turn.
        if self._checking is None:
            self._check(list(self.connections), 0)

    def _check(self, unchecked: list[Connection | _Sniffer], stalled: int) -> None:
        """Check some of these connections now, and the others in the next turns of the loop."""
        some = unchecked[-_CHECKED_PER_TURN:]
        del unchecked[-_CHECKED_PER_TURN:]
        try:
            for connection in some:
                if connection in self.connections:
                    connection.check_timeouts(self.tick)
                    stalled += connection.is_stalled(self.tick, _STALLED)
        finally:
            if unchecked:
                self._checking = self.loop.call_soon(self._check, unchecked, stalled)
            else:
                self._checking = None
                self.stalled = stalled


class _Sniffer(asyncio.Protocol):
    """Reads a connection's first bytes, and replaces itself by the protocol that they belong to."""

    __slots__ = ("last_chance", "listener", "seen", "tick", "transport")

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.transport = cast(asyncio.Transport, None)
        self.seen = b""
        self.tick = listener.tick
        self.last_chance = listener.is_stopping

    is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        listener = self.listener
        if len(listener.connections) >= listener.limits.max_connections:
            listener.refused += 1
            limit = listener.limits.max_connections
            self._refuse(b"503 Service Unavailable", f"the server holds max_connections ({limit}) connections")
            return
        listener.connections.add(self)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.seen += data
        if PREFACE.startswith(self.seen[: len(PREFACE)]):
            if len(self.seen) < len(PREFACE):
                return
            self._become(Http2ServerConnection(self.listener))
        elif self.seen.startswith(_TLS_HANDSHAKE):
            # Its client waits for a handshake, and would do so until head_timeout.
            self._refuse(b"400 Bad Request", "this port speaks no TLS: use http:// or grpc://")
        else:
            self._become(Http1Connection(self.listener))

    def _refuse(self, status: bytes, message: str) -> None:
        body, _ = self.listener.error_body(message)
        self.transport.write(
            b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, len(body), body)
        )
        self.transport.close()

    def _become(self, connection: Connection) -> None:
        listener = self.listener
        listener.connections.discard(self)
        listener.connections.add(connection)
        if listener.tls is not None:
            peer = connection.peer_identity = peer_identity(self.transport.get_extra_info("ssl_object"))
            if peer and isinstance(connection, Http1Connection):
                connection.heads = RequestHeads(listener.limits, peer)
        self.transport.set_protocol(connection)
        connection.connection_made(self.transport)
        if isinstance(connection, Http1Connection):
            connection.last_chance = self.last_chance
        connection.data_received(self.seen)

    def connection_lost(self, error: Exception | None) -> None:
        self.listener.forget(self)

    def check_timeouts(self, tick: int) -> None:
        limits = self.listener.limits
        # A client may connect before its first request; after the first byte, the head timeout applies.
        if tick - self.tick > (limits.head_timeout if self.seen else limits.idle_timeout):
            self.transport.abort()

    def is_stalled(self, tick: int, seconds: float) -> bool:
        return False

    def offer_last_request(self) -> bool:
        """Before ``shut_down``: whether the client has just connected, and may be sending its first request now."""
        self.last_chance = self.listener.tick - self.tick <= 1
        return self.last_chance

    def shut_down(self) -> None:
        self.transport.close()
