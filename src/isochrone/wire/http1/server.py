"""HTTP/1.1, server side: parses requests, routes them to the ``Application``, and writes answers in order.

Small messages arrive through ``data_received``; a large body is received directly into a buffer of its announced size
(``DirectReceiver``). Pipelined requests run concurrently and are answered in order. Never blocks, and never buffers
without a limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, cast

from isochrone.clock import now_ns
from isochrone.wire.bodies.budget import SMALL
from isochrone.wire.bodies.direct_receiver import LARGE_BODY, SMALL_REST, DirectReceiver, may_receive_directly
from isochrone.wire.connection_host import ConnectionHost
from isochrone.wire.exchange import Buffer, Head
from isochrone.wire.http1.chunked import ChunkedDecoder, ChunkedError
from isochrone.wire.http1.exchange import JOIN_LIMIT, Http1Exchange
from isochrone.wire.http1.memory import Http1Memory
from isochrone.wire.http1.request_heads import HeadRejected, RequestHeads
from isochrone.wire.progress import BODY_PROGRESS, Progress

#: Seconds for a client to read an error before its connection is aborted.
_LINGER = 2
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Http1Host(ConnectionHost, Protocol):
    """The listener of an HTTP/1.1 connection."""

    heads: RequestHeads


class Http1Connection(asyncio.Protocol):
    """One client's connection. State is grouped by lifetime."""

    __slots__ = (
        "body",
        "body_view",
        "chunked",
        "closed",
        "closing",
        "counted",
        "exchanges",
        "filled",
        "head",
        "heads",
        "in_callback",
        "last_chance",
        "lingering",
        "listener",
        "memory",
        "out",
        "peer_identity",
        "progress",
        "reading_paused",
        "receiver",
        "tick",
        "transport",
        "unparsed",
        "write_paused",
    )

    def __init__(self, listener: Http1Host) -> None:
        # Per connection.
        self.listener = listener
        self.transport = cast(asyncio.Transport, None)
        self.tick = listener.tick
        #: The listener sets it, for a client that has shown a certificate.
        self.peer_identity: tuple[str, ...] = ()
        #: The listener's; its own, if its client has shown a certificate.
        self.heads: RequestHeads = listener.heads
        #: No further request is read; the connection closes after the last answer.
        self.closing = False
        #: The server is stopping: one more request is answered.
        self.last_chance = False
        #: A request was rejected: further bytes are read and dropped, since closing immediately would reset the
        #: connection before the client has read the error (RFC 9112 §9.6).
        self.lingering = False
        self.closed = False
        self.exchanges: deque[Http1Exchange] = deque()
        self.out: list[Buffer] = []
        self.in_callback = False
        self.memory = Http1Memory(listener.budget)
        self.progress = Progress(listener.tick)
        self.write_paused = False
        self.reading_paused = False
        #: The transport's protocol while large bodies arrive.
        self.receiver: DirectReceiver | None = None
        # Per message being received.
        self.unparsed = b""
        self.head: Head | None = None
        self.body: memoryview | None = None
        self.body_view = memoryview(b"")
        self.filled = 0
        #: Bytes of the body received when its timeout last started.
        self.counted = 0
        self.chunked: ChunkedDecoder | None = None

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.listener.turn.received(self, data)

    def receive(self, data: bytes) -> None:
        """Process received bytes; answers that are ready immediately wait for ``flush``."""
        if (
            not self.exchanges
            and not self.last_chance
            and not self.unparsed
            and self.head is None
            and not self.closing
            and not self.write_paused
        ):
            # Most reads are one complete request with a memoised head, on an idle connection.
            stop = data.find(b"\r\n\r\n") + 4
            head = self.heads.get(data[:stop])
            if head is not None and head.direct and stop + head.content_length == len(data):
                self.tick = self.listener.tick
                exchange = Http1Exchange(self, head)
                exchange.body = data[stop:]
                exchange.arrived = now_ns()
                self.exchanges.append(exchange)
                self.in_callback = True
                try:
                    head.route.handle(exchange)  # type: ignore[union-attr]
                finally:
                    self.in_callback = False
                return
        if self.lingering:
            return
        # The head timeout starts with the first byte of a message.
        if not self.unparsed and self.head is None:
            self.tick = self.listener.tick
        self.in_callback = True
        try:
            if self.unparsed:
                data = self.unparsed + data
                self.unparsed = b""
            self._consume(data)
        finally:
            self.in_callback = False

    def eof_received(self) -> bool:
        # Nearly every client disconnects this way (a timeout, a cancelled task), so its requests are dropped before
        # they cost compute. TCP does not distinguish this from a half-close by a client that continues to read, and
        # stock clients do not half-close. Answers already written are still sent.
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.listener.forget(self)
        self.memory.share.close()
        exchanges, self.exchanges = self.exchanges, deque()
        self.body = None
        self.body_view = memoryview(b"")
        self.unparsed = b""
        for exchange in exchanges:
            owner, exchange.owner, exchange.on_writable = exchange.owner, None, None
            if owner is not None:
                owner.abandoned()

    def pause_writing(self) -> None:
        self.write_paused = True
        # The rest of a large body is read nevertheless: its buffer is already allocated.
        if self.receiver is None or self.body is None:
            self._pause_reading()

    def resume_writing(self) -> None:
        self.write_paused = False
        self.memory.account(self.transport.get_write_buffer_size())
        if self.exchanges:
            callback, self.exchanges[0].on_writable = self.exchanges[0].on_writable, None
            if callback is not None:
                callback()
        self._maybe_resume()

    # Called by the listener.

    @property
    def is_busy(self) -> bool:
        return bool(self.exchanges) or self.head is not None

    def check_timeouts(self, tick: int) -> None:
        """Called about once a second."""
        limits = self.listener.limits
        age = tick - self.tick
        if self.write_paused:
            self.progress.update(self.transport, tick)
        else:
            self.progress.clear(tick)
        if self.write_paused or self.memory.is_held:
            self.memory.account(self.transport.get_write_buffer_size())
        if self.lingering:
            # Answers to earlier requests are sent first, as fast as the client reads them.
            if self.write_paused:
                if self.is_stalled(tick, limits.write_timeout):
                    self.transport.abort()
            elif self.transport.get_write_buffer_size():
                self.tick = tick
            elif age > _LINGER and not self.exchanges:
                self.transport.abort()
        elif self.write_paused:
            if self.is_stalled(tick, limits.write_timeout):
                self.transport.abort()
        elif self.head is not None:
            come = self.filled if self.chunked is None else self.chunked.total
            if come - self.counted >= BODY_PROGRESS:
                self.counted, self.tick = come, tick
            elif age > limits.body_timeout:
                self._reject(408, f"the request's body did not arrive within body_timeout ({limits.body_timeout:g} s)")
        elif self.unparsed and not self.reading_paused:
            if age > limits.head_timeout:
                self._reject(408, f"the request's head did not arrive within head_timeout ({limits.head_timeout:g} s)")
        elif not self.exchanges and age > limits.idle_timeout:
            self.transport.close()

    def is_stalled(self, tick: int, seconds: float) -> bool:
        """Whether the peer has read none of the unsent bytes for ``seconds``."""
        return self.write_paused and tick - self.progress.at > seconds

    def shut_down(self) -> None:
        """Finish the requests in progress, then close."""
        self.closing = True
        if not self.is_busy:
            self.transport.close()

    def offer_last_request(self) -> bool:
        """Before ``shut_down``: whether the client may be sending its next request now.

        Closing would reset that request. It is answered instead, with ``connection: close``.
        """
        self.last_chance = not self.is_busy and self.listener.tick - self.tick <= 1
        return self.last_chance

    # Receiving.

    def _consume(self, data: bytes) -> None:
        position = 0
        end = len(data)
        listener = self.listener
        while position < end or self.head is not None:
            if self.closing and self.head is None:
                return
            if self.write_paused or (self.exchanges and len(self.exchanges) >= self._concurrency()):
                self._pause_reading()
                self.unparsed = data[position:]
                return
            head = self.head
            if head is None:
                stop = data.find(b"\r\n\r\n", position)
                if stop < 0:
                    if end - position > listener.limits.max_head_bytes:
                        limit = listener.limits.max_head_bytes
                        self._reject(431, f"the request's head is larger than max_head_bytes ({limit})")
                        return
                    if data.find(b"\n\n", position) >= 0:
                        self._reject(400, "malformed HTTP/1.1 request: lines of a head must end with CRLF")
                        return
                    self.unparsed = data[position:]
                    return
                stop += 4
                raw = data[position:stop]
                head = self.heads.get(raw)
                if head is None:
                    # RFC 9112 §2.2: empty lines before a request line are ignored. They end with CRLF as all lines do:
                    # whether a bare LF passes must not depend on how the bytes were cut.
                    stripped = raw
                    while stripped.startswith(b"\r\n"):
                        stripped = stripped[2:]
                    if not stripped:
                        position = stop
                        continue
                    try:
                        if len(raw) > listener.limits.max_head_bytes:
                            limit = listener.limits.max_head_bytes
                            raise HeadRejected(431, f"the request's head is larger than max_head_bytes ({limit})")
                        head = self.heads.parse(stripped)
                    except HeadRejected as rejection:
                        self._reject(rejection.status, str(rejection))
                        return
                position = stop
                length = head.content_length
                if length <= 0 and not head.chunked:
                    self._dispatch(head, b"")
                    continue
                if length > listener.limits.max_body_bytes:
                    self._reject_body(head)
                    return
                if length >= LARGE_BODY and self.receiver is None and may_receive_directly(self.transport):
                    self.receiver = DirectReceiver(self)
                if 0 < length <= end - position:
                    if length > SMALL and not self.memory.reserve(length):
                        self._reject_for_memory(head)
                        return
                    self._dispatch(head, data[position : position + length])
                    position += length
                    continue
                if not self._begin_body(head):
                    return
            position = self._continue_body(head, data, position)
            if position < 0:
                return

    def _begin_body(self, head: Head) -> bool:
        """Reserve memory for a body; False: there is none, and the request is rejected."""
        if not self.memory.reserve(head.content_length):
            self._reject_for_memory(head)
            return False
        self.head = head
        # Head and body have separate timeouts.
        self.tick = self.listener.tick
        if head.expects_continue and not self.exchanges:
            self.send([_CONTINUE], 0)
        if head.chunked:
            self.chunked = ChunkedDecoder()
        else:
            self.body = self.listener.budget.bodies.take(head.content_length)
            self.body_view = self.body
        self.filled = self.counted = 0
        return True

    def _continue_body(self, head: Head, data: bytes, position: int) -> int:
        """Consume body bytes; returns the end of the message, or -1 if it is not complete."""
        if self.chunked is not None:
            decoder = self.chunked
            try:
                position = decoder.feed(data, position)
            except ChunkedError as error:
                self._reject(400, f"malformed chunked body: {error}")
                return -1
            if decoder.total > self.listener.limits.max_body_bytes:
                self._reject_body(head)
                return -1
            if decoder.total > self.memory.arriving and not self.memory.reserve(decoder.total + (decoder.total >> 2)):
                self._reject_for_memory(head)
                return -1
            if not decoder.done:
                return -1
            self.head, self.chunked = None, None
            self._dispatch(head, decoder.take())
            return position
        take = min(head.content_length - self.filled, len(data) - position)
        self.body_view[self.filled : self.filled + take] = memoryview(data)[position : position + take]
        self.filled += take
        if self.filled < head.content_length:
            return -1
        self._body_complete()
        return position + take

    def _body_complete(self) -> None:
        head, body = cast(Head, self.head), cast(memoryview, self.body)
        self.head, self.body, self.body_view = None, None, memoryview(b"")
        self._dispatch(head, body)

    # Called by the direct receiver.

    def body_space(self) -> memoryview | None:
        # ``unparsed``: bytes of the body that were read before reading was paused.
        if self.body is None or self.unparsed or len(self.body) - self.filled < SMALL_REST:
            return None
        return self.body_view[self.filled :]

    def body_filled(self, space: memoryview, count: int) -> None:
        self.filled += count
        if self.filled < len(cast(memoryview, self.body)):
            return
        self.in_callback = True
        try:
            self._body_complete()
        finally:
            self.in_callback = False
            self.flush()

    def receive_now(self, data: bytes) -> None:
        self.receive(data)
        self.flush()

    def _dispatch(self, head: Head, body: Buffer) -> None:
        exchange = Http1Exchange(self, head)
        exchange.body = body
        exchange.arrived = now_ns()
        if self.memory.arriving:
            exchange.reserved = self.memory.take_arriving()
        self.exchanges.append(exchange)
        if not head.keep_alive or self.last_chance:
            self.closing = True
        route = head.route
        if route is None:
            route = head.route = self.listener.application.route(head)
            # Larger bodies need a reservation, which the fast path does not make.
            limit = min(self.listener.limits.max_body_bytes, SMALL)
            head.direct = (
                0 < head.content_length <= limit and head.keep_alive and not head.chunked and not route.streaming
            )
        if route.streaming:
            # Over HTTP/1.1 the body is already complete.
            consumer = route.open(exchange)
            consumer.data_received(bytes(body))
            consumer.ended()
        else:
            route.handle(exchange)

    # Sending.

    def send(self, parts: list[Buffer], size: int) -> None:
        if size <= JOIN_LIMIT:
            if not self.in_callback and not self.out:
                self.listener.turn.mark(self)
            self.out += parts
        else:
            self.flush()
            self.progress.written += sum(len(part) for part in parts)
            self.transport.writelines(parts)
            self.memory.account(self.transport.get_write_buffer_size())

    def flush(self) -> None:
        if self.out:
            out, self.out = self.out, []
            if not self.closed:
                data = b"".join(out)
                self.progress.written += len(data)
                self.transport.write(data)

    def count_waiting(self, size: int) -> None:
        """Count ``size`` bytes of an answer that waits for the answers of earlier requests."""
        self.memory.waiting += size
        self.memory.account(self.transport.get_write_buffer_size())

    def advance(self) -> None:
        """The first exchange is answered: send the following answers that are ready, then resume reading."""
        exchanges = self.exchanges
        self._pop_answered()
        while exchanges:
            first = exchanges[0]
            if first.waiting is not None:
                parts, first.waiting = first.waiting, None
                size = sum(len(part) for part in parts)
                self.memory.waiting = max(0, self.memory.waiting - size)
                self.send(parts, size)
            if not first.finished:
                callback, first.on_writable = first.on_writable, None
                if callback is not None:
                    callback()
                break
            self._pop_answered()
        if self.memory.is_held:
            self.memory.account(self.transport.get_write_buffer_size())
        if not exchanges:
            self.memory.waiting = 0
            self.tick = self.listener.tick
            if self.closing and self.head is None:
                self.flush()
                if not self.lingering:
                    self.transport.close()
                return
        if self.reading_paused:
            self._maybe_resume()

    def _pop_answered(self) -> None:
        exchange = self.exchanges.popleft()
        if exchange.reserved:
            exchange.give_back(exchange.reserved)

    def _reject(self, status: int, message: str, head: Head | None = None) -> None:
        """Answer a request that cannot be read with an error, after earlier answers, and end the connection."""
        head = head or self.head
        exchange = Http1Exchange(self, _REJECTED)
        self.head, self.chunked, self.body, self.unparsed = None, None, None, b""
        self.body_view = memoryview(b"")
        self.memory.drop_arriving()
        self.closing = True
        self.lingering = True
        self.tick = self.listener.tick
        self.exchanges.append(exchange)
        body, headers = self.listener.error_body(message, status, head)
        exchange.respond(status, headers, [body])

    def _reject_body(self, head: Head) -> None:
        limit = self.listener.limits.max_body_bytes
        self._reject(413, f"the request's body is larger than max_body_bytes ({limit})", head)

    def _reject_for_memory(self, head: Head) -> None:
        self._reject(503, self.listener.no_memory(), head)

    # Back-pressure.

    def _concurrency(self) -> int:
        return self.memory.concurrency(self.listener.limits.max_pipelined)

    def _pause_reading(self) -> None:
        if not self.reading_paused and not self.closed:
            self.reading_paused = True
            self.transport.pause_reading()

    def _maybe_resume(self) -> None:
        if (
            self.closed
            or self.write_paused
            or not self.reading_paused
            or len(self.exchanges) > self._concurrency() // 2
        ):
            return
        self.reading_paused = False
        # The server caused the pause, so it does not count against the client's timeout.
        self.tick = self.listener.tick
        self.transport.resume_reading()
        if self.unparsed and not self.in_callback:
            # Requests that were read before the pause; data_received is only called when more bytes arrive.
            self.listener.loop.call_soon(self._consume_unparsed)

    def _consume_unparsed(self) -> None:
        if self.unparsed and not self.closed:
            self.receive(b"")
            self.flush()


#: The head of requests that are rejected before their head is parsed.
_REJECTED = Head(b"", b"", ())
_REJECTED.keep_alive = False
