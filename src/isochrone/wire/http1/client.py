"""HTTP/1.1, client side: sends requests, and delivers the answers to their receivers in order.

The gateway and commands use it. Requests may be pipelined. A large body with an announced length is received directly
into its own buffer; a chunked body is delivered piece by piece. The interface is callbacks; ``request`` is a coroutine
on top of them. Never retries: lost requests fail with ``ConnectionLost``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from isochrone.errors import ConnectionLost, DeadlineExceeded, IsochroneError
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.budget import UNACCOUNTED
from isochrone.wire.bodies.direct_receiver import LARGE_BODY, SMALL_REST, DirectReceiver, may_receive_directly
from isochrone.wire.exchange import Buffer, Headers
from isochrone.wire.http1.chunked import ChunkedDecoder, ChunkedError
from isochrone.wire.http1.response_heads import ResponseHead, ResponseHeads
from isochrone.wire.receiver import Gathering, Receiver, Response, too_large
from isochrone.wire.turn import Turn

#: Requests up to this size are joined into one write; larger ones go out as a list of buffers.
_JOIN_LIMIT = 32 * 1024


def request_head(method: bytes, target: bytes, headers: Headers, length: int) -> bytes:
    """A request's head for ``send``; ``headers`` must contain Host. Adds Content-Length."""
    lines = [b"%s %s HTTP/1.1\r\n" % (method, target)]
    lines += [b"%s: %s\r\n" % header for header in headers]
    lines.append(b"content-length: %d\r\n\r\n" % length)
    return b"".join(lines)


class Call:
    """A request in progress."""

    __slots__ = ("connection", "receiver", "without_body")

    def __init__(self, connection: Http1ClientConnection, receiver: Receiver, without_body: bool) -> None:
        self.connection = connection
        #: None: the request was cancelled or has ended.
        self.receiver: Receiver | None = receiver
        #: The request was HEAD: the answer has no body, whatever it announces.
        self.without_body = without_body

    def cancel(self) -> None:
        """Cancel the request; the receiver is not called again."""
        if self.receiver is not None:
            self.receiver = None
            self.connection.abandoned()


class Http1ClientConnection(asyncio.Protocol):
    """One connection to a server. State is grouped by lifetime."""

    __slots__ = (
        "body",
        "body_view",
        "calls",
        "chunked",
        "closed",
        "closing",
        "filled",
        "head",
        "heads",
        "limits",
        "on_closed",
        "on_writable",
        "out",
        "receiver",
        "staged",
        "transport",
        "turn",
        "unparsed",
        "write_paused",
    )

    def __init__(
        self, limits: WireLimits | None = None, heads: ResponseHeads | None = None, turn: Turn | None = None
    ) -> None:
        # Per connection.
        self.limits = limits or WireLimits()
        #: Connections to the same servers may share these.
        self.heads = heads or ResponseHeads(self.limits)
        self.transport = cast(asyncio.Transport, None)
        self.calls: deque[Call] = deque()
        #: The gateway's staged turns; bytes read and not yet processed; requests not yet written.
        self.turn = turn
        self.staged: list[bytes] = []
        self.out: list[Buffer] = []
        #: The server closes after the current answer: no further request.
        self.closing = False
        self.closed = False
        self.write_paused = False
        #: The transport's protocol while large bodies arrive.
        self.receiver: DirectReceiver | None = None
        #: Called once, when a congested connection takes more bytes.
        self.on_writable: Callable[[], None] | None = None
        #: Called when the connection has ended, after the receivers of its calls.
        self.on_closed: Callable[[], None] | None = None
        # Per answer being received.
        self.unparsed = b""
        self.head: ResponseHead | None = None
        self.body: memoryview | None = None
        self.body_view = memoryview(b"")
        self.filled = 0
        self.chunked: ChunkedDecoder | None = None

    # Called by users of the connection.

    @property
    def is_reusable(self) -> bool:
        return not (self.closed or self.closing)

    @property
    def is_congested(self) -> bool:
        return self.write_paused

    def send(self, head: bytes, body: Sequence[Buffer], receiver: Receiver) -> Call:
        """Send a request. ``head`` is complete: its Content-Length is that of ``body``."""
        call = Call(self, receiver, head.startswith(b"HEAD "))
        if self.closed or self.closing:
            call.receiver = None
            receiver.failed(ConnectionLost("the connection is closed", unprocessed=True))
            return call
        self.calls.append(call)
        size = len(head)
        for part in body:
            size += len(part)
        if size > _JOIN_LIMIT:
            self.flush()
            self.transport.writelines([head, *body])
        elif self.turn is not None and self.turn.staging:
            if not self.out:
                self.turn.mark_requests(self)
            self.out.append(head)
            self.out += body
        else:
            self.transport.write(b"".join((head, *body)) if body else head)
        return call

    def flush(self) -> None:
        """Write queued requests."""
        if self.out:
            out, self.out = self.out, []
            if not self.closed:
                self.transport.write(b"".join(out))

    async def request(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: Sequence[Buffer] = (),
        timeout: float | None = None,  # noqa: ASYNC109 (a caller's deadline, not a way to cancel)
    ) -> Response:
        """Send a request and wait for the complete answer. Raises ``ConnectionLost`` or ``DeadlineExceeded``."""
        receiver = Gathering(asyncio.get_running_loop(), self.limits.max_body_bytes)
        call = self.send(request_head(method, target, headers, sum(len(part) for part in body)), body, receiver)
        try:
            async with asyncio.timeout(timeout):
                return await receiver.future
        except TimeoutError:
            raise DeadlineExceeded(f"no answer within timeout ({timeout:g} s)") from None
        finally:
            call.cancel()

    def pause_reading(self) -> None:
        """Stop reading until ``resume_reading``."""
        if not self.closed:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.closed:
            self.transport.resume_reading()

    def close(self) -> None:
        """Close the connection; calls in progress fail."""
        self._end(ConnectionLost("the connection was closed by this side"))

    def abandoned(self) -> None:
        """A call was cancelled. If it was the only one, close the connection, which tells the server; otherwise its
        answer is read and dropped."""
        if not self.closed and all(call.receiver is None for call in self.calls):
            self._end(None)

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        turn = self.turn
        if turn is not None and (turn.staging or self.staged):
            self.staged.append(data)
            if len(self.staged) == 1:
                turn.received(self, b"")
            return
        self.receive(data)

    def receive(self, data: bytes) -> None:
        """Process received bytes."""
        if self.staged:
            data = self.staged[0] if len(self.staged) == 1 else b"".join(self.staged)
            self.staged = []
        if self.closed or not data:
            return
        if not self.unparsed and self.head is None and len(self.calls) == 1:
            # Most reads are one complete answer with a memoised head, to the only request in progress.
            stop = data.find(b"\r\n\r\n") + 4
            head = self.heads.get(data[:stop])
            if head is not None and head.direct and stop + head.content_length == len(data):
                call = self.calls.popleft()
                receiver, call.receiver = call.receiver, None
                if receiver is not None:
                    receiver.whole(head.status, head.headers, data[stop:], ())
                return
        if self.unparsed:
            data = self.unparsed + data
            self.unparsed = b""
        try:
            self._consume(data)
        except ConnectionLost as error:
            self._end(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self.staged:
            # The last answer and the end of the connection may arrive in one turn.
            self.receive(b"")
        if self.closed:
            return
        head = self.head
        if head is not None and error is None and head.content_length < 0 and not head.chunked:
            # The end of the connection is the end of this body (RFC 9112 §6.3).
            self._complete(head)
        untouched = head is None and not self.unparsed
        reason = "the server closed the connection" if error is None else f"the connection broke: {error}"
        self._end(ConnectionLost(f"{reason} {'before' if untouched else 'within'} an answer"))

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        callback, self.on_writable = self.on_writable, None
        if callback is not None:
            callback()

    # Receiving.

    def _consume(self, data: bytes) -> None:
        position = 0
        end = len(data)
        while position < end:
            head = self.head
            if head is None:
                if not self.calls:
                    raise ConnectionLost("the server sent an answer without a request")
                stop = data.find(b"\r\n\r\n", position) + 4
                if (end if stop < 4 else stop) - position > self.limits.max_head_bytes:
                    limit = self.limits.max_head_bytes
                    raise ConnectionLost(f"the answer's head is larger than max_head_bytes ({limit})")
                if stop < 4:
                    self.unparsed = data[position:]
                    return
                raw = data[position:stop]
                position = stop
                head = self.heads.get(raw) or self.heads.parse(raw)
                if head.status < 200:
                    continue  # an interim response; the answer follows
                call = self.calls[0]
                if call.receiver is not None:
                    call.receiver.head(head.status, head.headers)
                    if self.closed:
                        return
                length = head.content_length
                if length == 0 or call.without_body:
                    self._complete(head)
                    if self.closed:
                        return
                    continue
                if length > self.limits.max_body_bytes:
                    self._end(too_large(self.limits.max_body_bytes))
                    return
                if length >= LARGE_BODY and self.receiver is None and may_receive_directly(self.transport):
                    self.receiver = DirectReceiver(self)
                if 0 < length <= end - position:
                    if call.receiver is not None:
                        call.receiver.data(data[position : position + length])
                    position += length
                    if not self.closed:
                        self._complete(head)
                    if self.closed:
                        return
                    continue
                self.head = head
                if head.chunked:
                    self.chunked = ChunkedDecoder()
                elif length > 0:
                    self.body = self.body_view = UNACCOUNTED.bodies.take(length)
                    self.filled = 0
            position = self._continue_body(head, data, position)
            if position < 0 or self.closed:
                return

    def _continue_body(self, head: ResponseHead, data: bytes, position: int) -> int:
        """Consume body bytes; returns the end of the answer, or -1 if it is not complete."""
        if self.body is not None:
            take = min(head.content_length - self.filled, len(data) - position)
            self.body_view[self.filled : self.filled + take] = memoryview(data)[position : position + take]
            self.filled += take
            if self.filled < head.content_length:
                return -1
            self._body_complete()
            return position + take
        receiver = self.calls[0].receiver
        decoder = self.chunked
        if decoder is None:
            if receiver is not None:
                receiver.data(data[position:])
            return -1
        try:
            position = decoder.feed(data, position)
        except ChunkedError as error:
            raise ConnectionLost(f"malformed chunked answer: {error}") from None
        piece = decoder.take()
        if piece and receiver is not None:
            receiver.data(piece)
        if not decoder.done:
            return -1
        if not self.closed:
            self._complete(head)
        return position

    def _body_complete(self) -> None:
        head, body = cast(ResponseHead, self.head), cast(memoryview, self.body)
        self.body, self.body_view = None, memoryview(b"")
        receiver = self.calls[0].receiver
        if receiver is not None:
            receiver.data(body)
        if not self.closed:
            self._complete(head)

    # Called by the direct receiver.

    def body_space(self) -> memoryview | None:
        if self.body is None or len(self.body) - self.filled < SMALL_REST:
            return None
        return self.body_view[self.filled :]

    def body_filled(self, space: memoryview, count: int) -> None:
        self.filled += count
        if self.filled == len(cast(memoryview, self.body)):
            self._body_complete()

    def receive_now(self, data: bytes) -> None:
        self.receive(data)

    # Endings.

    def _complete(self, head: ResponseHead) -> None:
        """The answer of the first call is complete."""
        call = self.calls.popleft()
        self.head, self.chunked = None, None
        if not head.keep_alive or (head.content_length < 0 and not head.chunked and not call.without_body):
            self.closing = True
        receiver, call.receiver = call.receiver, None
        if receiver is not None:
            receiver.complete(())
        if self.closing and not self.closed:
            # RFC 9112 §9.6: a server that closes processes none of the requests after this answer.
            self._end(ConnectionLost("the server closed the connection before this request", unprocessed=True))

    def _end(self, error: IsochroneError | None) -> None:
        if self.closed:
            return
        self.closed = True
        self.body, self.body_view, self.unparsed = None, memoryview(b""), b""
        self.transport.abort()
        calls, self.calls = self.calls, deque()
        for call in calls:
            receiver, call.receiver = call.receiver, None
            if receiver is not None:
                receiver.failed(error or ConnectionLost("the connection was abandoned"))
        callback, self.on_closed = self.on_closed, None
        if callback is not None:
            callback()
