"""HTTP/2, client side: opens streams on a connection to a server, and delivers their answers to receivers.

The gateway and commands use it. Respects the server's windows and MAX_CONCURRENT_STREAMS (further streams wait). After
GOAWAY, streams that the server did not accept fail as ``unprocessed``: it is safe to send them elsewhere. Never
retries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from isochrone.errors import ConnectionLost, IsochroneError
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.budget import UNACCOUNTED
from isochrone.wire.exchange import Buffer, Headers
from isochrone.wire.head_memo import remember_second
from isochrone.wire.http2 import frames
from isochrone.wire.http2.connection import Http2Connection
from isochrone.wire.http2.fields import MALFORMED, AnswerBlock, answer_block
from isochrone.wire.http2.frames import ConnectionFault
from isochrone.wire.http2.hpack import Encoder, HeaderListTooLarge
from isochrone.wire.http2.stream import Stream
from isochrone.wire.receiver import Receiver, too_large
from isochrone.wire.turn import Turn

#: Limit on streams before the server's SETTINGS arrive (RFC 9113 §6.5.2 recommends at least 100 to servers).
_STREAMS_BEFORE_SETTINGS = 100
_LAST_STREAM = frames.MAX_STREAM_ID - 2
_MAX_MEMOISED_BYTES = 512
_MAX_MEMOISED_HEADS = 256

_unpack_header = frames.frame_header.unpack_from
encode = Encoder().encode


def request_block(method: bytes, scheme: bytes, authority: bytes, path: bytes, headers: Headers) -> bytes:
    """A header block for ``Http2ClientConnection.open``; valid on any connection, so it may be cached."""
    return encode([(b":method", method), (b":scheme", scheme), (b":path", path), (b":authority", authority), *headers])


class ClientStream(Stream):
    """A request in progress. ``id`` is 0 while it waits for the server to accept more streams."""

    __slots__ = ("expected", "on_writable", "received", "receiver", "status", "trailers", "without_body")

    def __init__(self, connection: Http2ClientConnection, receiver: Receiver, without_body: bool) -> None:
        # Stream's fields are set here, without a call to its __init__: this runs for every request.
        self.connection = connection
        self.id = 0
        self.send_window = connection.initial_send_window
        self.unacknowledged = 0
        self.remote_done = False
        self.local_done = False
        self.begun = False
        self.pending = None
        self.unsent = 0
        self.queued = False
        self.held = False
        self.progressed = 0
        self.reserved = 0
        #: None: the request was cancelled or has ended.
        self.receiver: Receiver | None = receiver
        #: Called once, when a congested stream takes more bytes.
        self.on_writable: Callable[[], None] | None = None
        #: 0 until the answer's head is received.
        self.status = 0
        self.trailers: Headers = ()
        #: Announced length of the body (-1: not announced), and bytes received.
        self.expected = -1
        self.received = 0
        #: The request was HEAD.
        self.without_body = without_body

    def cancel(self) -> None:
        """Cancel the request: reset the stream. The receiver is not called again."""
        if self.receiver is None:
            return
        self.receiver = None
        if self.id:
            self.connection.reset(self, frames.CANCEL)
        else:
            cast(Http2ClientConnection, self.connection).forget_waiting(self)
            self.connection.drop(self, frames.CANCEL)

    # Called by the connection.

    def data(self, payload: bytes) -> None:
        self.received += len(payload)
        if not self.status or (self.expected >= 0 and self.received > self.expected):
            # RFC 9113 §8.1, §8.1.1: DATA before the head, or more DATA than announced.
            self.connection.reset(self, frames.PROTOCOL_ERROR)
        elif self.receiver is not None:
            self.receiver.data(payload)

    def ended(self) -> None:
        connection = cast(Http2ClientConnection, self.connection)
        if not self.status or (self.expected >= 0 and self.received != self.expected):
            connection.reset(self, frames.PROTOCOL_ERROR)
            return
        receiver, self.receiver = self.receiver, None
        if self.local_done:
            connection.streams.pop(self.id, None)
        else:
            # The server answered before the end of the request: the rest is not sent.
            connection.reset(self, frames.NO_ERROR)
        if receiver is not None:
            receiver.complete(self.trailers)
        connection.stream_over()

    def lost(self, code: int) -> None:
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.failed(cast(Http2ClientConnection, self.connection).loss(self, code))
        cast(Http2ClientConnection, self.connection).stream_over()

    def writable(self) -> None:
        callback, self.on_writable = self.on_writable, None
        if callback is not None:
            callback()


class Http2ClientConnection(Http2Connection):
    """One connection to a server."""

    def __init__(
        self,
        limits: WireLimits | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        turn: Turn | None = None,
    ) -> None:
        super().__init__(limits or WireLimits(), loop or asyncio.get_running_loop(), UNACCOUNTED)
        #: The gateway's staged turns, and bytes read and not yet processed.
        self.turn = turn
        self.staged: list[bytes] = []
        self.next_stream = 1
        #: Streams over the server's limit; their frames wait in ``pending``.
        self.waiting: deque[ClientStream] = deque()
        self.heads: dict[bytes, AnswerBlock] = {}
        self.blocks_seen: set[int] = set()
        #: The reason for the connection's end, for error messages.
        self.ended_because = "the connection was closed"
        #: The last stream in GOAWAY: later streams were not processed.
        self.last_processed = frames.MAX_STREAM_ID
        self.control_since = self.loop.time()
        #: Called when no further stream can be opened; open streams may still be answered.
        self.on_going_away: Callable[[], None] | None = None
        #: Called when the connection is closed, after the receivers of its streams.
        self.on_closed: Callable[[], None] | None = None

    # Called by users of the connection.

    @property
    def is_reusable(self) -> bool:
        return not (self.closed or self.going_away)

    @property
    def has_room(self) -> bool:
        """Whether the server accepts one more stream now."""
        return len(self.streams) < (self.peer_max_streams if self.settings_seen else _STREAMS_BEFORE_SETTINGS)

    def open(
        self, block: bytes, body: Sequence[Buffer], receiver: Receiver, *, end: bool = True, head: bool = False
    ) -> ClientStream:
        """Send a request; ``block`` comes from ``request_block``.

        With ``end=False`` the body continues in ``send_data`` of the returned stream. ``head``: the method is HEAD.
        """
        # A peer counts empty frames as a flood.
        body = [part for part in body if len(part)]
        stream = ClientStream(self, receiver, head)
        if self.going_away or self.closed:
            stream.receiver = None
            stream.local_done = True
            receiver.failed(ConnectionLost(self.ended_because, unprocessed=True))
        elif self.waiting or not self.has_room:
            stream.pending = deque(((frames.HEADERS, block, end and not body),))
            self.waiting.append(stream)
            self._send_body(stream, body, end)
        else:
            self._take(stream)
            stream.send_headers(block, end and not body)
            self._send_body(stream, body, end)
        return stream

    def open_whole(self, block: bytes, payload: Buffer, receiver: Receiver) -> ClientStream:
        """``open`` for a complete request: sends head and body together if they fit the windows, as most do."""
        length = len(payload)
        if (
            length > self.initial_send_window
            or length > self.send_window
            or length > self.peer_max_frame
            or len(block) > frames.DEFAULT_FRAME
            or not length
            or self.write_paused
            or self.waiting
            or self.going_away
            or self.closed
            or self.table_update_due
            or len(self.streams) >= (self.peer_max_streams if self.settings_seen else _STREAMS_BEFORE_SETTINGS)
        ):
            return self.open(block, (payload,) if length else (), receiver)
        stream = ClientStream(self, receiver, False)
        stream_id = stream.id = self.next_stream
        self.streams[stream_id] = stream
        self.next_stream = stream_id + 2
        if stream_id >= _LAST_STREAM:
            self.ended_because = "the connection has no stream numbers left"
            self.going_away = True
        stream.send_window -= length
        self.send_window -= length
        stream.local_done = True
        size = len(block)
        pack = frames.frame_header.pack
        self.out += (
            pack(size >> 8, size & 0xFF, 1, 4, stream_id),
            block,
            pack(length >> 8, length & 0xFF, 0, 1, stream_id),
            payload,
        )
        self.out_size += size + length + 18
        if not self.in_callback and not self.flush_planned:
            self.plan_flush()
        return stream

    def _send_body(self, stream: ClientStream, body: Sequence[Buffer], end: bool) -> None:
        last = len(body) - 1
        for index, part in enumerate(body):
            stream.send_data(part, end and index == last)

    def close(self) -> None:
        """Close the connection; streams in progress fail."""
        self.ended_because = "the connection was closed by this side"
        if not self.closed:
            self.fail(frames.NO_ERROR, "")
            self.connection_lost(None)

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        limits = self.limits
        settings = {
            frames.SETTINGS_ENABLE_PUSH: 0,
            frames.SETTINGS_INITIAL_WINDOW_SIZE: limits.stream_window,
            frames.SETTINGS_MAX_FRAME_SIZE: limits.max_frame_bytes,
            frames.SETTINGS_MAX_HEADER_LIST_SIZE: limits.max_head_bytes,
        }
        increment = limits.connection_window - frames.DEFAULT_WINDOW
        self.transport.write(frames.PREFACE + frames.settings_frame(settings) + frames.window_update(0, increment))

    def data_received(self, data: bytes) -> None:
        turn = self.turn
        if turn is None:
            super().data_received(data)
        elif turn.staging or self.staged:
            self.staged.append(data)
            if len(self.staged) == 1:
                turn.received(self, b"")
        else:
            turn.alone(self, data)

    def receive(self, data: bytes) -> None:
        if self.staged:
            data = self.staged[0] if len(self.staged) == 1 else b"".join(self.staged)
            self.staged = []
        super().receive(data)

    def _receive(self, data: bytes) -> None:
        # Most reads are complete answers with memoised heads; the general path handles the rest.
        if not self.data_left and not self.unparsed and self.gathered is None and self.block is None:
            position = self._whole_answers(data)
            if position:
                if position == len(data) or self.closed:
                    return
                data = data[position:]
        super()._receive(data)

    def _whole_answers(self, data: bytes) -> int:
        """Process answers of a memoised head, one DATA frame and perhaps trailers; returns the position after them."""
        position, end = 0, len(data)
        limits, streams, heads = self.limits, self.streams, self.heads
        while end - position >= 18:
            high, low, kind, flags, stream_id = _unpack_header(data, position)
            stop = position + 9 + (high << 8 | low)
            if kind != 1 or flags != 4 or stop + 9 > end:
                break
            answer = heads.get(data[position + 9 : stop])
            high, low, kind, flags, other = _unpack_header(data, stop)
            length = high << 8 | low
            after = stop + 9 + length
            if answer is None or answer.status < 200 or kind or other != stream_id or after > end or not length:
                break
            trailers: Headers = ()
            over = after
            if flags == 0:
                if after + 9 > end:
                    break
                high, low, kind, flags, other = _unpack_header(data, after)
                over = after + 9 + (high << 8 | low)
                if kind != 1 or flags != 5 or other != stream_id or over > end:
                    break
                last = heads.get(data[after + 9 : over])
                if last is None or last.status:
                    break
                trailers = last.headers
            elif flags != 1:
                break
            stream = streams.get(stream_id)
            if (
                stream is None
                or stream.status
                or not stream.local_done
                or stream.without_body
                or stream.unacknowledged
                or length > limits.max_frame_bytes
                or length > limits.max_body_bytes
                or (answer.content_length >= 0 and answer.content_length != length)
            ):
                break
            self.unacknowledged += length
            if self.unacknowledged >= limits.connection_window >> 1:
                self._return_window()
            del streams[stream_id]
            stream.remote_done = True
            stream.status = answer.status
            receiver, stream.receiver = stream.receiver, None
            position = over
            if receiver is not None:
                receiver.whole(answer.status, answer.headers, data[stop + 9 : after], trailers)
            if self.waiting or self.going_away:
                self.stream_over()
            if self.closed:
                return end
        return position

    def plan_flush(self) -> None:
        if self.turn is None:
            super().plan_flush()
        else:
            self.flush_planned = True
            self.turn.mark_requests(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self.staged and not self.closed:
            # The last answers and the end of the connection may arrive in one turn.
            self.receive(b"")
        if self.closed:
            return
        if not self.going_away:
            self.ended_because = (
                "the server closed the connection" if error is None else f"the connection broke: {error}"
            )
        self.going_away = True
        super().connection_lost(error)

    def connection_ended(self) -> None:
        self._fail_waiting()
        for callback in (self.on_going_away, self.on_closed):
            if callback is not None:
                callback()
        self.on_going_away = self.on_closed = None

    # Called by ``Http2Connection``.

    def idle_stream(self, stream_id: int) -> bool:
        return stream_id >= self.next_stream or stream_id % 2 == 0

    def headers_received(self, stream_id: int, block: bytes, ends: bool) -> None:
        answer = self.heads.get(block)
        if answer is None:
            answer = self._decode_answer(block)
        stream = self.streams.get(stream_id)
        if stream is None:
            if self.idle_stream(stream_id):
                raise ConnectionFault(frames.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}, which is not open")
            self.count_control()
            return
        status = answer.status
        if stream.remote_done:
            self.reset(stream, frames.STREAM_CLOSED)
        elif status == 0 and stream.status and ends:
            stream.trailers = answer.headers
            stream.remote_done = True
            stream.ended()
        elif status >= 200 and not stream.status:
            stream.status = status
            if answer.content_length > self.limits.max_body_bytes and not stream.without_body:
                receiver = stream.receiver
                stream.cancel()
                if receiver is not None:
                    receiver.failed(too_large(self.limits.max_body_bytes))
                return
            if not stream.without_body and status != 304:
                stream.expected = answer.content_length
            if stream.receiver is not None:
                stream.receiver.head(status, answer.headers)
            if ends and stream.id in self.streams:
                stream.remote_done = True
                stream.ended()
        elif 100 <= status < 200 and not stream.status and not ends:
            self.count_control()  # an interim response; the answer follows
        else:
            # RFC 9113 §8.1.1: a malformed answer is a stream error.
            self.reset(stream, frames.PROTOCOL_ERROR)

    def _decode_answer(self, block: bytes) -> AnswerBlock:
        if not self.settings_seen:
            self.settings_missing()
        decoder = self.decoder
        before = decoder.generation
        try:
            answer = answer_block(self.decode(block))
        except HeaderListTooLarge:
            answer = MALFORMED
        if decoder.generation != before:
            self.heads.clear()
        elif len(block) <= _MAX_MEMOISED_BYTES:
            remember_second(block, answer, self.heads, self.blocks_seen, _MAX_MEMOISED_HEADS)
        return answer

    def goaway_received(self, last_stream: int, code: int, reason: bytes) -> None:
        text = reason.decode("utf-8", "replace")
        self.ended_because = f"the server sent GOAWAY (code {code}{': ' if text else ''}{text})"
        self.going_away = True
        self.last_processed = min(self.last_processed, last_stream)
        for stream in [stream for stream in self.streams.values() if stream.id > last_stream]:
            self.drop(stream, frames.REFUSED_STREAM)
        self._fail_waiting()
        callback, self.on_going_away = self.on_going_away, None
        if callback is not None:
            callback()
        if not self.streams:
            self.transport.close()

    def settings_changed(self) -> None:
        self.stream_over()

    def peer_may_push(self, value: int) -> bool:
        # RFC 9113 §6.5.2: a server must not enable push.
        return value == 0

    def fail(self, code: int, reason: str) -> None:
        if reason and not self.going_away:
            self.ended_because = f"this side ended the connection (code {code}: {reason})"
        super().fail(code, reason)

    def cut_stalled(self) -> None:
        self.ended_because = "the server reads nothing"
        super().cut_stalled()

    @property
    def highest_stream(self) -> int:
        return self.next_stream

    def count_control(self) -> None:
        self._forget_control()
        super().count_control()

    def count_follow_up(self) -> None:
        self._forget_control()
        super().count_follow_up()

    def _forget_control(self) -> None:
        # Client connections have no listener whose sweep resets the counters.
        now = self.loop.time()
        if now - self.control_since >= 1.0:
            self.control_since = now
            self.flood.forget(self.next_stream)

    # Streams.

    def stream_over(self) -> None:
        """A stream has ended: open waiting streams, or close a connection that is going away after its last stream."""
        while self.waiting and self.has_room and not self.going_away:
            self._launch(self.waiting.popleft())
        if self.going_away and not self.streams and not self.closed:
            self.flush()
            self.transport.close()

    def forget_waiting(self, stream: ClientStream) -> None:
        self.waiting.remove(stream)

    def loss(self, stream: ClientStream, code: int) -> IsochroneError:
        """The error for the receiver of a lost stream."""
        if self.closed or stream.id > self.last_processed or stream.id == 0:
            unprocessed = stream.id > self.last_processed or stream.id == 0
            return ConnectionLost(self.ended_because, unprocessed=unprocessed)
        return ConnectionLost(
            f"the stream was reset with code {code}", unprocessed=code == frames.REFUSED_STREAM and not stream.status
        )

    def _take(self, stream: ClientStream) -> None:
        stream.id = self.next_stream
        stream.send_window = self.initial_send_window
        self.streams[stream.id] = stream
        self.next_stream += 2
        if self.next_stream > frames.MAX_STREAM_ID:
            self.ended_because = "the connection has no stream numbers left"
            self.going_away = True

    def _launch(self, stream: ClientStream) -> None:
        """Open a waiting stream."""
        pending, stream.pending = stream.pending, None
        if pending is None:
            return
        self._take(stream)
        # Immediately: stream numbers must increase in the order in which HEADERS are sent (RFC 9113 §5.1.1).
        _, block, end = pending.popleft()
        stream.send_headers(bytes(block), end)
        if pending:
            stream.pending = pending
            self.send_windowless(stream, pending, end)
            self.pump()

    def _fail_waiting(self) -> None:
        waiting, self.waiting = self.waiting, deque()
        for stream in waiting:
            self.drop(stream, frames.REFUSED_STREAM)
