"""Sends over HTTP/1.1: one request at a time on a connection, and as many connections as requests are in flight.

Connections are used in turn, not the last one first: a server with several processes gets its load on all of them.
"""

from __future__ import annotations

import ssl
from collections import deque

import msgspec

from isochrone.bench.results.outcomes import FAILED
from isochrone.bench.sending.events import EventStream
from isochrone.bench.sending.http_requests import AnswerForm, HttpRequest
from isochrone.bench.sending.pool import ConnectionPool
from isochrone.bench.sending.sender import Done, outcome_of_http, shortened
from isochrone.client.address import Address
from isochrone.client.http.requests import LIMITS
from isochrone.errors import IsochroneError
from isochrone.wire.connect import connect_http1
from isochrone.wire.exchange import Buffer, Headers
from isochrone.wire.http1.client import Call, Http1ClientConnection
from isochrone.wire.http1.response_heads import ResponseHeads

#: Bytes of an error's body that are read for its message.
_MOST_ERROR_BYTES = 4096


class HttpSender(ConnectionPool[Http1ClientConnection]):
    """``limit``: most connections. ``at_start``: those that ``open`` makes."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, limit: int, at_start: int) -> None:
        super().__init__(limit, at_start)
        self._address = address
        self._tls = tls
        self._heads = ResponseHeads(LIMITS)
        self._idle: deque[Http1ClientConnection] = deque()

    def send(self, request: HttpRequest, done: Done) -> _Exchange:
        exchange = _Exchange(self, request, done)
        self.submit(exchange)
        return exchange

    def free(self, connection: Http1ClientConnection) -> None:
        """The connection's answer is complete."""
        if connection.is_reusable and not self.is_closed:
            self._idle.append(connection)
            self.serve_waiting()

    # As the pool needs it.

    def take(self) -> Http1ClientConnection | None:
        return self._idle.popleft() if self._idle else None

    async def connect(self) -> Http1ClientConnection:
        return await connect_http1(
            self._address.host, self._address.port, limits=LIMITS, heads=self._heads, tls=self._tls
        )

    def added(self, connection: Http1ClientConnection) -> None:
        connection.on_closed = lambda: self._ended(connection)
        self._idle.append(connection)

    def _ended(self, connection: Http1ClientConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        self.lost(connection)


class _Exchange:
    """One request, and the receiver of its answer."""

    __slots__ = ("_body", "_call", "_connection", "_events", "_request", "_sender", "_status", "done")

    def __init__(self, sender: HttpSender, request: HttpRequest, done: Done) -> None:
        self._sender = sender
        self._request = request
        #: None: ended or given up.
        self.done: Done | None = done
        self._connection: Http1ClientConnection | None = None
        self._call: Call | None = None
        self._status = 0
        self._events: EventStream | None = None
        #: Of an error: the beginning of its body.
        self._body = b""

    def begin(self, connection: Http1ClientConnection) -> None:
        self._connection = connection
        if self.done is not None:
            self.done.sent()
        self._call = connection.send(self._request.data, (), self)

    def fail(self, error: str) -> None:
        done, self.done = self.done, None
        if done is not None:
            done.ended(FAILED, error)

    def cancel(self) -> None:
        if self.done is None:
            return
        self.done = None
        if self._connection is None:
            self._sender.forget(self)
        elif self._call is not None:
            self._call.cancel()

    # Called by the connection.

    def whole(self, status: int, headers: Headers, data: Buffer, trailers: Headers) -> None:
        done = self.done
        if status == 200 and self._request.form is AnswerForm.WHOLE and done is not None:
            # The common case. The next request may use the connection at once.
            self.done = None
            assert self._connection is not None
            self._sender.free(self._connection)
            done.begun()
            done.ended(0, "")
            return
        self.head(status, headers)
        self.data(data)
        self.complete(trailers)

    def head(self, status: int, headers: Headers) -> None:
        self._status = status
        if status == 200 and self._request.form is not AnswerForm.WHOLE:
            self._events = EventStream(is_openai=self._request.form is AnswerForm.OPENAI_EVENTS)
        elif self.done is not None:
            self.done.begun()

    def data(self, data: Buffer) -> None:
        if self._events is not None:
            if self._events.feed(bytes(data)) and self.done is not None:
                self.done.begun()
        elif self._status != 200 and len(self._body) < _MOST_ERROR_BYTES:
            self._body += bytes(data[:_MOST_ERROR_BYTES])

    def complete(self, trailers: Headers) -> None:
        done, self.done = self.done, None
        assert self._connection is not None
        self._sender.free(self._connection)
        if done is None:
            return
        if self._events is not None:
            done.ended(*self._events.ending())
        elif self._status == 200:
            done.ended(0, "")
        else:
            done.ended(outcome_of_http(self._status) or FAILED, f"HTTP {self._status}: {_message(self._body)}")

    def failed(self, error: IsochroneError) -> None:
        self.fail(shortened(str(error)))


def _message(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body)["error"]
        return shortened(str(error.get("message", error) if isinstance(error, dict) else error))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return shortened(body.decode("utf-8", "replace")) or "no explanation"
