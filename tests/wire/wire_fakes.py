"""Both ends of a connection without a socket: a transport that records, a loop run by hand, small applications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from isochrone.errors import IsochroneError
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.budget import MemoryBudget
from isochrone.wire.exchange import Application, Buffer, Exchange, Head, Headers, Route
from isochrone.wire.http1.request_heads import RequestHeads
from isochrone.wire.http1.server import Http1Connection
from isochrone.wire.http2.server import Http2ServerConnection
from isochrone.wire.http2.shared_heads import SharedHeads
from isochrone.wire.listening.listener import Listener
from isochrone.wire.receiver import Receiver
from isochrone.wire.turn import Turn


class ManualLoop:
    """As much of an event loop as the protocols use; ``run`` is one turn after another until nothing is left."""

    def __init__(self) -> None:
        self.now = 0.0
        self._soon: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        self._soon.append((callback, arguments))

    def time(self) -> float:
        return self.now

    def run(self) -> None:
        while self._soon:
            soon, self._soon = self._soon, []
            for callback, arguments in soon:
                callback(*arguments)


class FakeTransport(asyncio.Transport):
    """Records what is written; ``feed`` plays the peer and keeps to pauses and protocol changes as a real one does."""

    def __init__(self, protocol: Any, *, extra: dict[str, object] | None = None) -> None:
        super().__init__(extra or {})
        self.protocol = protocol
        self.written = bytearray()
        self.writes = 0
        self.reading = True
        self.closing = False
        self.aborted = False
        self.buffered = 0
        self.buffered_protocols = 0
        self._inbox = bytearray()
        protocol.connection_made(self)

    def write(self, data: Buffer) -> None:
        if not self.closing:
            self.written += data
            self.writes += 1

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol
        self.buffered_protocols += isinstance(protocol, asyncio.BufferedProtocol)

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def feed(self, data: bytes) -> None:
        self._inbox += data
        while self._inbox and self.reading and not self.closing:
            if isinstance(self.protocol, asyncio.BufferedProtocol):
                view = self.protocol.get_buffer(-1)
                count = min(len(view), len(self._inbox))
                view[:count] = self._inbox[:count]
                del self._inbox[:count]
                self.protocol.buffer_updated(count)
            else:
                data = bytes(self._inbox)
                self._inbox.clear()
                self.protocol.data_received(data)

    def feed_in_pieces(self, data: bytes, cuts: Sequence[int]) -> None:
        """``cuts`` are positions, in any order."""
        start = 0
        for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
            if cut > start:
                self.feed(data[start:cut])
                start = cut

    def take(self) -> bytes:
        data = bytes(self.written)
        self.written.clear()
        return data


class HoldingRoute(Route):
    """Keeps exchanges for the test to answer; ``answer`` does it at once."""

    def __init__(self, answer: Callable[[Exchange], None] | None = None) -> None:
        self.exchanges: list[Exchange] = []
        self.bodies: list[bytes] = []
        self.answer = answer

    def handle(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.bodies.append(bytes(exchange.body))
        if self.answer is not None:
            self.answer(exchange)


class OneRoute:
    """An application with one route for all."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self.heads: list[Head] = []

    def route(self, head: Head) -> Route:
        self.heads.append(head)
        return self._route


def echo(exchange: Exchange) -> None:
    exchange.respond(200, ((b"content-type", b"application/octet-stream"),), [bytes(exchange.body)])


class UnboundListener(Listener):
    """A listener without its socket and event loop."""

    def __init__(self, application: Application, limits: WireLimits | None = None) -> None:
        self.application = application
        self.limits = limits or WireLimits()
        self.budget = MemoryBudget(self.limits.max_buffered_bytes)
        self.tls = None
        self.heads = RequestHeads(self.limits)
        self.shared_heads = SharedHeads(self.limits.max_memoised_head_bytes)
        self.loop: Any = ManualLoop()
        # Never stages: what is fed is answered before feed returns.
        self.turn = Turn(self.loop, burst_ns=-1)
        self.tick = 0
        self.connections = set()
        self.refused = 0
        self._server = None
        self._sweeper = None
        self._empty = None
        self.is_stopping = False


class ServerEnd:
    """One connection of a listener, its application's route, and its transport."""

    def __init__(
        self,
        kind: type[Http1Connection] | type[Http2ServerConnection],
        answer: Callable[[Exchange], None] | None = echo,
        limits: WireLimits | None = None,
        route: Route | None = None,
        tick: int = 0,
    ) -> None:
        self.route = HoldingRoute(answer)
        self.listener = UnboundListener(OneRoute(route or self.route), limits)
        #: How long it has been running when the connection is made.
        self.listener.tick = tick
        self.connection: Any = kind(self.listener)
        self.listener.connections.add(self.connection)
        self.transport = FakeTransport(self.connection)

    def feed(self, data: bytes) -> bytes:
        self.transport.feed(data)
        return self.turn()

    def turn(self) -> bytes:
        self.listener.loop.run()
        return self.transport.take()


class RecordingReceiver(Receiver):
    """What came of one request."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.pieces: list[bytes] = []
        self.trailers: Headers | None = None
        self.error: IsochroneError | None = None
        self.calls: list[str] = []

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def is_complete(self) -> bool:
        return self.trailers is not None

    def head(self, status: int, headers: Headers) -> None:
        self.calls.append("head")
        self.status, self.headers = status, headers

    def data(self, data: Buffer) -> None:
        self.calls.append("data")
        self.pieces.append(bytes(data))

    def complete(self, trailers: Headers) -> None:
        assert self.trailers is None
        assert self.error is None
        self.calls.append("complete")
        self.trailers = trailers

    def failed(self, error: IsochroneError) -> None:
        assert self.trailers is None
        assert self.error is None
        self.calls.append("failed")
        self.error = error
