"""Two ends of an HTTP/2 connection of ours and a network between them that a test moves byte by byte.

Each transport has a buffer with a high-water mark in front of a kernel buffer of fixed size, as a real one has: bytes
go on only when the other end reads, and a writer is paused and resumed as asyncio does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from wire_fakes import HoldingRoute, ManualLoop, OneRoute, UnboundListener

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.http2.client import Http2ClientConnection
from isochrone.wire.http2.server import Http2ServerConnection

HIGH_WATER = 8_000
LOW_WATER = 2_000
KERNEL = 6_000


class PipeTransport(asyncio.Transport):
    """One end's transport."""

    def __init__(self, protocol: Any) -> None:
        super().__init__({})
        self.protocol = protocol
        self.peer: PipeTransport | None = None
        self.reading = True
        self.closing = False
        self._buffer = bytearray()
        self._kernel = bytearray()
        self._paused = False

    def write(self, data: Any) -> None:
        if self.closing:
            return
        self._buffer += data
        self._fill_kernel()
        if len(self._buffer) > HIGH_WATER and not self._paused:
            self._paused = True
            self.protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def _fill_kernel(self) -> None:
        room = KERNEL - len(self._kernel)
        self._kernel += self._buffer[:room]
        del self._buffer[:room]

    def move(self, count: int) -> int:
        """Up to ``count`` bytes reach the other end, if that reads; returns how many did."""
        assert self.peer is not None
        if not self.peer.reading:
            return 0
        data = bytes(self._kernel[:count])
        del self._kernel[:count]
        self._fill_kernel()
        if self._paused and len(self._buffer) <= LOW_WATER:
            self._paused = False
            self.protocol.resume_writing()
        if data:
            self.peer.protocol.data_received(data)
        return len(data)


class Network:
    """A server's and a client's connection, joined."""

    def __init__(self, server_limits: WireLimits, client_limits: WireLimits) -> None:
        self.route = HoldingRoute(None)
        self.listener = UnboundListener(OneRoute(self.route), server_limits)
        self.client_loop: Any = ManualLoop()
        self.server: Any = Http2ServerConnection(self.listener)
        self.listener.connections.add(self.server)
        self.client: Any = Http2ClientConnection(client_limits, self.client_loop)
        self.server_end, self.client_end = PipeTransport(self.server), PipeTransport(self.client)
        self.server_end.peer, self.client_end.peer = self.client_end, self.server_end
        self.client.connection_made(self.client_end)
        self.server.connection_made(self.server_end)

    def turn(self) -> None:
        self.client_loop.run()
        self.listener.loop.run()

    def move(self, to_server: int, to_client: int) -> int:
        moved = self.client_end.move(to_server)
        self.turn()
        moved += self.server_end.move(to_client)
        self.turn()
        return moved

    def settle(self, after: Callable[[], None]) -> None:
        """Moves everything until nothing moves any more; ``after`` is called between."""
        for _ in range(100_000):
            after()
            # A second passes for the flood counters.
            self.server.flood.forget(self.server.last_stream)
            self.client_loop.now += 1.0
            if not self.move(1 << 20, 1 << 20):
                return
        raise AssertionError("bytes move for ever")
