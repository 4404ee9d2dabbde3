"""One request on an HTTP/1.1 connection, and its answer. Answers are sent in the order of the requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Protocol

from isochrone.wire.connection_host import ConnectionHost
from isochrone.wire.exchange import Buffer, Head, Headers, Owner
from isochrone.wire.head_memo import remember_second
from isochrone.wire.http1.memory import Http1Memory
from isochrone.wire.progress import Progress
from isochrone.wire.turn import TurnConnection

#: Answers up to this size are joined into one write; larger ones go out as a list of buffers.
JOIN_LIMIT = 32 * 1024

_REASONS = {status.value: status.phrase for status in HTTPStatus}

#: (status, headers) → the head's bytes without content-length. Answers repeat as requests do.
_response_heads: dict[tuple[int, Headers], bytes] = {}
_seen_heads: set[int] = set()
_MAX_MEMOISED_HEADS = 1024


def response_head(status: int, headers: Headers) -> bytes:
    """The head of a response, memoised. A header of every HTTP/1.1 response is added here."""
    key = (status, headers)
    head = _response_heads.get(key)
    if head is None:
        lines = [b"HTTP/1.1 %d %s\r\n" % (status, _REASONS.get(status, "").encode())]
        lines += [b"%s: %s\r\n" % header for header in headers]
        head = b"".join(lines)
        remember_second(key, head, _response_heads, _seen_heads, _MAX_MEMOISED_HEADS)
    return head


class ExchangeConnection(TurnConnection, Protocol):
    """The part of an HTTP/1.1 connection that its exchanges use."""

    closed: bool
    closing: bool
    exchanges: deque[Http1Exchange]
    in_callback: bool
    memory: Http1Memory
    out: list[Buffer]
    #: URIs and DNS names of the client's certificate; (): it has shown none.
    peer_identity: tuple[str, ...]
    progress: Progress
    reading_paused: bool
    tick: int
    transport: asyncio.Transport
    write_paused: bool

    @property
    def listener(self) -> ConnectionHost: ...

    def send(self, parts: list[Buffer], size: int) -> None: ...

    def count_waiting(self, size: int) -> None: ...

    def advance(self) -> None: ...


class Http1Exchange:
    """A request on an HTTP/1.1 connection."""

    __slots__ = (
        "arrived",
        "body",
        "connection",
        "finished",
        "head",
        "on_writable",
        "owner",
        "reserved",
        "started",
        "waiting",
    )

    def __init__(self, connection: ExchangeConnection, head: Head) -> None:
        self.connection = connection
        self.head = head
        self.body: Buffer = b""
        self.arrived = 0
        self.owner: Owner | None = None
        self.on_writable: Callable[[], None] | None = None
        #: The bytes of an answer that waits for the answers of earlier requests.
        self.waiting: list[Buffer] | None = None
        #: Bytes reserved for its body.
        self.reserved = 0
        self.started = False
        self.finished = False

    def reserve(self, size: int) -> bool:
        connection = self.connection
        if self.finished or connection.closed or not connection.memory.share.reserve(size):
            return False
        self.reserved += size
        return True

    def give_back(self, size: int) -> None:
        # After the request has ended, all of it has been given back already.
        size = 0 if self.connection.closed else min(size, self.reserved)
        self.reserved -= size
        self.connection.memory.share.give_back(size)

    def no_memory(self) -> str:
        return self.connection.listener.no_memory()

    @property
    def is_congested(self) -> bool:
        connection = self.connection
        return not connection.closed and (connection.write_paused or connection.exchanges[0] is not self)

    def respond(self, status: int, headers: Headers, body: Sequence[Buffer]) -> None:
        connection = self.connection
        self.owner = None
        if connection.closed:
            return
        length = 0
        for part in body:
            length += len(part)
        if self.head.keep_alive and not (connection.closing and connection.exchanges[-1] is self):
            head = b"%scontent-length: %d\r\n\r\n" % (response_head(status, headers), length)
        else:
            head = b"%scontent-length: %d\r\nconnection: close\r\n\r\n" % (
                response_head(status, headers),
                length,
            )
        self.finished = True
        parts: list[Buffer] = [head, *body] if self.head.method != b"HEAD" else [head]
        exchanges = connection.exchanges
        if (
            len(exchanges) == 1
            and not connection.closing
            and not connection.reading_paused
            and length <= JOIN_LIMIT
            and not connection.memory.is_held
        ):
            # The common case: a small answer to the only request, written immediately or with those of the same turn.
            exchanges.clear()
            listener = connection.listener
            connection.tick = listener.tick
            if connection.in_callback or connection.out:
                connection.out += parts
            elif listener.turn.staging or listener.turn.working:
                connection.out = parts
                listener.turn.mark(connection)
            else:
                data = b"".join(parts)
                connection.progress.written += len(data)
                connection.transport.write(data)
            if self.reserved:
                self.give_back(self.reserved)
            return
        connection.memory.note_answer_size(length)
        if exchanges[0] is self:
            connection.send(parts, length)
            connection.advance()
        else:
            self.waiting = parts
            connection.count_waiting(length)

    def start(self, status: int, headers: Headers) -> None:
        if self.connection.closed:
            return
        self.started = True
        if self.head.ends_by_closing:
            self.connection.closing = True
        # RFC 9112 §9.6: after this field no answer follows, so that only the last one may carry it.
        is_last = not self.head.keep_alive or (self.connection.closing and self.connection.exchanges[-1] is self)
        closing = b"connection: close\r\n" if is_last else b""
        # RFC 9112 §6.1, §7.1: HTTP/1.0 has no chunked coding; the end of the connection is the end of the body.
        coding = b"" if self.head.ends_by_closing else b"transfer-encoding: chunked\r\n"
        self._stream([b"%s%s%s\r\n" % (response_head(status, headers), coding, closing)], 0)

    def write(self, body: Sequence[Buffer]) -> None:
        length = sum(len(part) for part in body)
        if length and not self.connection.closed and self.head.method != b"HEAD":
            if self.head.ends_by_closing:
                self._stream([*body], length)
            else:
                self._stream([b"%x\r\n" % length, *body, b"\r\n"], length)

    def end(self) -> None:
        self.owner = None
        if self.connection.closed:
            return
        if not self.head.ends_by_closing and self.head.method != b"HEAD":
            self._stream([b"0\r\n\r\n"], 0)
        self.finished = True
        if self.connection.exchanges[0] is self:
            self.connection.advance()

    def abort(self) -> None:
        self.owner = None
        if not self.connection.closed:
            self.connection.transport.abort()

    def _stream(self, parts: list[Buffer], size: int) -> None:
        if self.connection.exchanges[0] is self:
            self.connection.send(parts, size)
            return
        if self.waiting is None:
            self.waiting = parts
        else:
            self.waiting += parts
        self.connection.count_waiting(size)
