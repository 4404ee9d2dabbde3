"""HTTP/2, server side: decodes heads, and routes complete requests to the ``Application``.

Stock gRPC clients send the same header block with every call, so heads are memoised by the block's bytes: of one that
uses the compression table until that changes, others for all connections of the listener (``shared_heads``).
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

from isochrone.clock import now_ns
from isochrone.wire.bodies.budget import SMALL
from isochrone.wire.connection_host import ConnectionHost
from isochrone.wire.exchange import Head, Headers
from isochrone.wire.head_memo import MAX_MEMOISED_BYTES, HeadMemo
from isochrone.wire.http2 import frames
from isochrone.wire.http2.fields import malformed, request_head
from isochrone.wire.http2.flood import RAPID_RESET_NS
from isochrone.wire.http2.frames import ConnectionFault
from isochrone.wire.http2.hpack import HeaderListTooLarge, is_stateless
from isochrone.wire.http2.server_stream import AcceptedConnection, ServerStream
from isochrone.wire.http2.shared_heads import SharedHeads
from isochrone.wire.http2.stream import Stream
from isochrone.wire.progress import BODY_PROGRESS

#: Bytes of the heads that one connection memoises, and up to which it keeps some of the shared ones at hand.
_MEMO_BYTES = 512 * 1024
_NEAR_BYTES = 128 * 1024
#: The head of streams that are rejected before their head is decoded.
_REJECTED = Head(b"", b"", ())

_unpack_header = frames.frame_header.unpack_from


class Http2Host(ConnectionHost, Protocol):
    """The listener of an HTTP/2 connection."""

    shared_heads: SharedHeads


class Http2ServerConnection(AcceptedConnection):
    """One client's connection."""

    def __init__(self, listener: Http2Host) -> None:
        # First: ``super().__init__`` reads the listener's clock.
        self.listener = listener
        self.shared_heads = listener.shared_heads
        super().__init__(listener.limits, listener.loop, listener.budget)
        self.tick = listener.tick
        #: The listener sets it, for a client that has shown a certificate.
        self.peer_identity = ()
        #: Tick at which the connection last had a stream: the idle timeout starts there.
        self.busy_at = listener.tick
        self.preface_left = frames.PREFACE
        #: A call of ``_shed`` is scheduled.
        self.shed_planned = False
        self.memo = HeadMemo(_MEMO_BYTES)
        #: Of the memo.
        self.heads: dict[Any, Head] = self.memo.heads

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        limits = self.limits
        settings = {
            frames.SETTINGS_MAX_CONCURRENT_STREAMS: limits.max_streams,
            frames.SETTINGS_INITIAL_WINDOW_SIZE: limits.stream_window,
            frames.SETTINGS_MAX_FRAME_SIZE: limits.max_frame_bytes,
            frames.SETTINGS_MAX_HEADER_LIST_SIZE: limits.max_head_bytes,
        }
        increment = limits.connection_window - frames.DEFAULT_WINDOW
        data = frames.settings_frame(settings) + frames.window_update(0, increment)
        self.progress.written += len(data)
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.listener.turn.received(self, data)

    def plan_flush(self) -> None:
        self.flush_planned = True
        self.listener.turn.mark(self)

    def receive(self, data: bytes) -> None:
        self.tick = self.listener.tick
        if self.preface_left:
            expected = self.preface_left[: len(data)]
            if not data.startswith(expected):
                self.fail(frames.PROTOCOL_ERROR, "the connection does not begin with the HTTP/2 preface")
                return
            self.preface_left = self.preface_left[len(expected) :]
            data = data[len(expected) :]
            if not data:
                return
        super().receive(data)

    def body_filled(self, space: memoryview, count: int) -> None:
        self.tick = self.listener.tick
        super().body_filled(space, count)

    def _receive(self, data: bytes) -> None:
        # Most reads are complete unary calls; the general path handles the rest.
        if not self.data_left and not self.unparsed and self.gathered is None and self.block is None:
            position = self._whole_calls(data)
            if position:
                if position == len(data):
                    return
                data = data[position:]
        super()._receive(data)

    def _whole_calls(self, data: bytes) -> int:
        """Process requests with a memoised head and a body of one frame; returns the position after them."""
        position, end = 0, len(data)
        limits, streams, share = self.limits, self.streams, self.share
        while end - position >= 18:
            high, low, kind, flags, stream_id = _unpack_header(data, position)
            stop = position + 9 + (high << 8 | low)
            if kind != 1 or flags != 4 or stop + 9 > end:
                break
            block = data[position + 9 : stop]
            head = self.heads.get(block) or self._shared_head(block)
            high, low, kind, flags, other = _unpack_header(data, stop)
            length = high << 8 | low
            after = stop + 9 + length
            if head is None or kind or flags != 1 or other != stream_id or after > end or not length:
                break
            route = head.route
            if (
                route is None
                or route.streaming
                or not self.last_stream < stream_id <= frames.MAX_STREAM_ID
                or not stream_id & 1
                or length > SMALL
                or length > limits.max_body_bytes
                or (head.content_length >= 0 and head.content_length != length)
                or len(streams) >= limits.max_streams
                or (share.held and share.is_exceeded)
                or self.going_away
            ):
                break
            self.last_stream = stream_id
            self.unacknowledged += length
            if self.unacknowledged >= limits.connection_window >> 1:
                self._return_window()
            stream = streams[stream_id] = ServerStream(self, stream_id, head)
            stream.body = data[stop + 9 : after]
            stream.received = length
            stream.remote_done = True
            stream.arrived = now_ns()
            position = after
            route.handle(stream)
            if self.closed:
                return end
        return position

    def connection_ended(self) -> None:
        self.listener.forget(self)

    def is_rapid(self, stream: Stream) -> bool:
        request = cast(ServerStream, stream)
        if not request.arrived:
            return request.opened == self.listener.tick
        return now_ns() - request.arrived < RAPID_RESET_NS

    def tick_now(self) -> int:
        return self.listener.tick

    def idle_stream(self, stream_id: int) -> bool:
        return stream_id > self.last_stream or stream_id % 2 == 0

    def headers_received(self, stream_id: int, block: bytes, ends: bool) -> None:
        head = self.heads.get(block) or self._shared_head(block)
        if stream_id <= self.last_stream:
            self._trailers(stream_id, block, ends)
            return
        if not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"a client opened stream {stream_id}, which is even")
        self.last_stream = stream_id
        if head is None:
            head = self._new_head(stream_id, block, ends)
            if head is None:
                return
        if len(self.streams) >= self.limits.max_streams or self.going_away:
            if not self.going_away:
                self.count_control()
            self.put(frames.rst_stream(stream_id, frames.REFUSED_STREAM))
            return
        stream = self.streams[stream_id] = ServerStream(self, stream_id, head)
        if self.share.is_exceeded:
            self.listener.budget.rejected += 1
            stream.remote_done = ends
            stream.reject_for_memory()
            return
        route = head.route
        if route is None:
            route = head.route = self.listener.application.route(head)
        if route.streaming:
            stream.arrived = now_ns()
            stream.consumer = route.open(stream)
        elif head.content_length > self.limits.max_body_bytes:
            limit = self.limits.max_body_bytes
            stream.remote_done = ends
            stream.reject(413, f"the request's body is larger than max_body_bytes ({limit})")
            return
        if ends:
            stream.remote_done = True
            stream.ended()

    def _new_head(self, stream_id: int, block: bytes, ends: bool) -> Head | None:
        """Decode and check a block that is not memoised; None: the stream was rejected."""
        if not self.settings_seen:
            self.settings_missing()
        decoder = self.decoder
        before = decoder.generation
        try:
            headers = self.decode(block)
        except HeaderListTooLarge as error:
            limits = self.limits
            stream = self.streams[stream_id] = ServerStream(self, stream_id, _REJECTED)
            stream.remote_done = ends
            stream.reject(
                431, f"{error}; max_head_bytes is {limits.max_head_bytes}, max_headers is {limits.max_headers}"
            )
            return None
        finally:
            if decoder.generation != before:
                self.memo.clear()
        head = request_head(headers)
        if head is None:
            self.count_control()
            self.put(frames.rst_stream(stream_id, frames.PROTOCOL_ERROR))
            return None
        head.peer = self.peer_identity
        if decoder.generation == before and len(block) <= MAX_MEMOISED_BYTES:
            if is_stateless(block):
                self.shared_heads.note(block, self.peer_identity, head)
            else:
                self.memo.note(block, head)
        return head

    def _shared_head(self, block: bytes) -> Head | None:
        """A head that some connection brought before; this one finds it at once from now on."""
        if not self.settings_seen:
            return None  # the client has not said that it speaks HTTP/2: see ``_new_head``
        head = self.shared_heads.find(block, self.peer_identity)
        if head is not None and self.memo.held < _NEAR_BYTES:
            self.memo.keep(block, head)
        return head

    def _trailers(self, stream_id: int, block: bytes, ends: bool) -> None:
        """A second header block on a stream: trailers, which gRPC clients may send but do not."""
        if not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}, which no client can open")
        before = self.decoder.generation
        trailers: Headers = ()
        try:
            trailers = self.decode(block)
        except HeaderListTooLarge:
            pass
        if self.decoder.generation != before:
            self.memo.clear()
        stream = self.streams.get(stream_id)
        if stream is None:
            # The stream is closed, perhaps by us (RFC 9113 §5.1).
            self.count_control()
        elif stream.remote_done:
            self.count_control()
            self.reset(stream, frames.STREAM_CLOSED)
        elif not ends or any(name.startswith(b":") or malformed(name, value) for name, value in trailers):
            # RFC 9113 §8.1: trailers end the stream and contain no pseudo-header.
            self.count_control()
            self.reset(stream, frames.PROTOCOL_ERROR)
        else:
            stream.remote_done = True
            stream.ended()

    def overdrawn(self) -> None:
        if not self.shed_planned:
            # Later: the current answer may be one of a batch whose other requests are being answered.
            self.shed_planned = True
            self.loop.call_soon(self._shed)

    def _shed(self) -> None:
        self.shed_planned = False
        # Checked again: the peer may have read answers since.
        if self.closed or not self.share.budget.is_overdrawn_by(self.unsent):
            return
        for stream in list(self.streams.values()):
            if stream.consumer is not None:
                stream.consumer.shed()
            elif not stream.begun and not stream.local_done:
                self.listener.budget.rejected += 1
                stream.shed()

    def finished_early(self, stream: Stream) -> None:
        # RFC 9113 §8.1: an answer that needs no more of the request is followed by RST_STREAM(NO_ERROR).
        self.put(frames.rst_stream(stream.id, frames.NO_ERROR))
        self.streams.pop(stream.id, None)

    # Called by the listener.

    @property
    def is_busy(self) -> bool:
        return bool(self.streams)

    def check_timeouts(self, tick: int) -> None:
        """Called about once a second; also resets the flood counters."""
        limits = self.limits
        self.flood.forget(self.last_stream)
        self.note_progress(tick)
        if self.transport.get_write_buffer_size() and self.is_stalled(tick, limits.write_timeout):
            self.transport.abort()
            return
        age = tick - self.tick
        begun = self.unparsed or self.gathered or self.preface_left or self.block is not None
        if begun and age > limits.head_timeout:
            self.fail(
                frames.PROTOCOL_ERROR,
                f"a frame did not arrive within head_timeout ({limits.head_timeout:g} s)",
            )
        elif not self.streams:
            if self.going_away:
                self.transport.close()
            elif tick - max(self.tick, self.busy_at) > limits.idle_timeout:
                self.fail(frames.NO_ERROR, "idle")
        else:
            self.busy_at = tick
            self._check_bodies(tick)
            for stalled in self.stalled_streams(tick, limits.write_timeout):
                self.reset(stalled, frames.CANCEL)
            if self.going_away:
                self.end_idle_streams()

    def _check_bodies(self, tick: int) -> None:
        """Reject requests whose body makes no progress."""
        limits = self.limits
        for stream in list(self.streams.values()):
            if stream.remote_done or stream.begun or stream.consumer is not None:
                continue
            if stream.received - stream.counted >= BODY_PROGRESS:
                stream.counted, stream.opened = stream.received, tick
            elif tick - stream.opened > limits.body_timeout:
                stream.reject(408, f"the body did not arrive within body_timeout ({limits.body_timeout:g} s)")

    def end_idle_streams(self) -> None:
        """End streaming calls without requests in progress: the server is stopping."""
        for stream in list(self.streams.values()):
            if stream.consumer is not None:
                stream.consumer.stopping()

    def shut_down(self) -> None:
        """Accept no new stream, and close after the last answer."""
        if self.closed or self.going_away:
            return
        self.going_away = True
        self.last_stream_announced = self.last_stream
        self.put(frames.goaway(self.last_stream, frames.NO_ERROR, b"server is stopping"))
        self.end_idle_streams()
        if not self.streams:
            self.flush()
            self.transport.close()
