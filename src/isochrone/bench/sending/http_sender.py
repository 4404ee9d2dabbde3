"""Sends over HTTP/1.1: one request at a time on a connection, and as many connections as requests are in flight.

Connections are used in turn, not the last one first: a server with several processes gets its load on all of them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque

import msgspec

from isochrone.background_tasks import BackgroundTasks
from isochrone.bench.results.outcomes import FAILED
from isochrone.bench.sending.events import EventStream
from isochrone.bench.sending.http_requests import AnswerForm, HttpRequest
from isochrone.bench.sending.sender import Done, outcome_of_http, shortened
from isochrone.client.address import Address
from isochrone.client.http.requests import LIMITS
from isochrone.errors import IsochroneError, Unavailable
from isochrone.wire.connect import connect_http1
from isochrone.wire.exchange import Buffer, Headers
from isochrone.wire.http1.client import Call, Http1ClientConnection
from isochrone.wire.http1.response_heads import ResponseHeads

#: Bytes of an error's body that are read for its message.
_MOST_ERROR_BYTES = 4096


class HttpSender:
    """``limit``: most connections. ``at_start``: those that ``open`` makes; others are made when they are needed."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, limit: int, at_start: int) -> None:
        self._address = address
        self._tls = tls
        self._limit = limit
        self._at_start = min(at_start, limit)
        self._heads = ResponseHeads(LIMITS)
        self._idle: deque[Http1ClientConnection] = deque()
        self._open: set[Http1ClientConnection] = set()
        self._connecting = 0
        #: Requests without a connection, in the order in which they came.
        self._waiting: deque[_Exchange] = deque()
        self._tasks = BackgroundTasks()
        self._closed = False

    async def open(self) -> None:
        # The first alone: a server that is not there is asked once.
        self._made(await self._connect())
        for connection in await asyncio.gather(*(self._connect() for _ in range(self._at_start - 1))):
            self._made(connection)

    def send(self, request: HttpRequest, done: Done) -> _Exchange:
        exchange = _Exchange(self, request, done)
        if self._idle:
            exchange.begin(self._idle.popleft())
        else:
            self._waiting.append(exchange)
            self._grow()
        return exchange

    async def close(self) -> None:
        self._closed = True
        await self._tasks.end()
        for connection in list(self._open):
            connection.close()
        # Transports close in the next turn of the loop.
        await asyncio.sleep(0)

    # Called by exchanges.

    def free(self, connection: Http1ClientConnection) -> None:
        """The connection's answer is complete."""
        if not connection.is_reusable or self._closed:
            return
        while self._waiting:
            exchange = self._waiting.popleft()
            if exchange.done is not None:
                exchange.begin(connection)
                return
        self._idle.append(connection)

    def forget(self, exchange: _Exchange) -> None:
        """A waiting exchange was given up."""
        self._waiting.remove(exchange)

    # Connections.

    def _grow(self) -> None:
        if self._connecting < len(self._waiting) and self._connecting + len(self._open) < self._limit:
            self._connecting += 1
            self._tasks.start(self._add())

    async def _add(self) -> None:
        try:
            connection = await self._connect()
        except IsochroneError as error:
            self._connecting -= 1
            # One request for each attempt, so that each request has one.
            while self._waiting:
                done, self._waiting[0].done = self._waiting[0].done, None
                self._waiting.popleft()
                if done is not None:
                    done.ended(FAILED, shortened(str(error)))
                    break
            self._grow()
            return
        except BaseException:
            self._connecting -= 1
            raise
        self._connecting -= 1
        self._made(connection)

    def _made(self, connection: Http1ClientConnection) -> None:
        self._open.add(connection)
        connection.on_closed = lambda: self._ended(connection)
        self.free(connection)

    def _ended(self, connection: Http1ClientConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._closed:
            self._grow()

    async def _connect(self) -> Http1ClientConnection:
        if self._closed:
            raise Unavailable("the generator is stopping")
        return await connect_http1(
            self._address.host, self._address.port, limits=LIMITS, heads=self._heads, tls=self._tls
        )


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
        done, self.done = self.done, None
        if done is not None:
            done.ended(FAILED, shortened(str(error)))


def _message(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body)["error"]
        return shortened(str(error.get("message", error) if isinstance(error, dict) else error))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return shortened(body.decode("utf-8", "replace")) or "no explanation"
