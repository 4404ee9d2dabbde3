"""Shadow traffic: a copy of a request to another version or model, whose answer nobody reads.

A copy is forwarded as any request is, from an exchange that throws its answer away. It is never retried nor hedged, and
counts against no quota.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from isochrone.clock import now_ns
from isochrone.wire.exchange import Buffer, Exchange, Head, Headers, Owner


class DiscardingExchange:
    """Stands in for a caller's exchange, HTTP's or gRPC's: takes an answer and drops it."""

    #: What a gRPC answer asks of its stream.
    local_done = False
    is_congested = False
    reserved = 0

    def __init__(self, original: Exchange) -> None:
        self.head: Head = original.head
        self.body: Buffer = original.body
        self.arrived = now_ns()
        self.owner: Owner | None = None
        self.on_writable: Callable[[], None] | None = None

    def _end(self) -> None:
        self.owner = None

    def reserve(self, size: int) -> bool:
        return False

    def give_back(self, size: int) -> None: ...

    def no_memory(self) -> str:
        return "a copy has no memory of its own"

    def respond(self, status: int, headers: Headers, body: Sequence[Buffer]) -> None:
        self._end()

    def start(self, status: int, headers: Headers) -> None: ...

    def write(self, body: Sequence[Buffer]) -> None: ...

    def end(self) -> None:
        self._end()

    def abort(self) -> None:
        self._end()

    # gRPC.

    def send_headers(self, block: bytes, end: bool) -> None: ...

    def send_data(self, payload: Buffer, end: bool = False) -> None: ...

    def end_with_trailers(self, block: bytes) -> None:
        self._end()

    def respond_unary(self, prefix: bytes, payload: Any, length: int, suffix: bytes) -> None:
        self._end()
