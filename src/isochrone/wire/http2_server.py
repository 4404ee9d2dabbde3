"""HTTP/2, server side: a HEADERS block becomes a head, a finished body becomes a handled exchange.

Stands between the shared HTTP/2 machinery and an ``Application``. Stock gRPC clients send the same header block with
every call, so heads are memoised by the block's bytes for as long as the connection's compression table stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from isochrone.clock import now_ns
from isochrone.wire import frames
from isochrone.wire.budget import SMALL
from isochrone.wire.exchange import Buffer, Consumer, Head, Header, Headers, Owner
from isochrone.wire.flood import RAPID_RESET_NS
from isochrone.wire.heads import remember_second
from isochrone.wire.hpack import Encoder, HeaderListTooLarge
from isochrone.wire.http2 import ConnectionFault, Http2Connection
from isochrone.wire.http2_stream import Stream
from isochrone.wire.request_body import BODY_PROGRESS, RequestBody, announced_size

if TYPE_CHECKING:
    from isochrone.wire.listener import Listener

_MAX_MEMOISED_BYTES = 512
_MAX_MEMOISED_HEADS = 512
_CONNECTION_HEADERS = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))

#: The wire's own refusals as gRPC says them: DEADLINE_EXCEEDED for a body that did not come, RESOURCE_EXHAUSTED.
_GRPC_REFUSALS = {408: b"4", 413: b"8", 431: b"8", 503: b"14"}

_unpack_header = frames.frame_header.unpack_from
_encode = Encoder().encode
#: (status, headers) → encoded block; our encoder keeps no state, so a block is good on any connection.
_response_blocks: dict[tuple[int, Headers], bytes] = {}


def response_block(status: int, headers: Headers) -> bytes:
    key = (status, headers)
    block = _response_blocks.get(key)
    if block is None:
        block = _encode([(b":status", b"%d" % status), *headers])
        if len(_response_blocks) >= 1024:
            _response_blocks.clear()
        _response_blocks[key] = block
    return block


class ServerStream(Stream):
    """A request on an HTTP/2 connection."""

    __slots__ = (
        "arrived",
        "body",
        "consumer",
        "counted",
        "head",
        "on_writable",
        "opened",
        "owner",
        "pieces",
        "received",
    )

    connection: Http2ServerConnection

    def __init__(self, connection: Http2ServerConnection, stream_id: int, head: Head) -> None:
        # Stream's own fields, set here rather than by a second call: this runs for every request.
        self.connection = connection
        self.id = stream_id
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
        self.head = head
        self.body: Buffer = b""
        self.arrived = 0
        self.owner: Owner | None = None
        self.on_writable: Callable[[], None] | None = None
        #: Tick at which it was opened, or its body last made progress; and what had come by then.
        self.opened = connection.listener.tick
        self.counted = 0
        self.consumer: Consumer | None = None
        self.pieces: RequestBody | None = None
        self.received = 0

    # Receiving.

    def data(self, payload: bytes) -> None:
        if self.consumer is not None:
            self.consumer.data_received(payload)
            return
        if self.begun:
            return  # refused before it was whole
        before = self.received
        self.received = received = before + len(payload)
        limits = self.connection.limits
        if received > limits.max_body_bytes:
            self.refuse(413, f"the request's body is larger than max_body_bytes ({limits.max_body_bytes})")
        elif before == 0:
            self._begin_body(payload)
        else:
            if self.pieces is None:
                self.pieces = RequestBody(self)
                self.pieces.add(bytes(self.body))
            if not self.pieces.add(payload):
                self.refuse_memory()

    def _begin_body(self, payload: bytes) -> None:
        size = announced_size(self.head.content_length, self.head.is_grpc, payload)
        if size <= len(payload) or self.remote_done:
            self.body = payload
            if len(payload) > SMALL and not self.reserve(len(payload)):
                self.refuse_memory()
            return
        limit = self.connection.limits.max_body_bytes
        if size > limit:
            self.refuse(413, f"the request's body is larger than max_body_bytes ({limit})")
            return
        self.pieces = RequestBody(self)
        if not self.pieces.expect(size, payload):
            self.refuse_memory()

    def ended(self) -> None:
        if self.consumer is not None:
            self.consumer.ended()
            return
        if self.begun:
            return
        if self.pieces is not None:
            self.body = self.pieces.whole()
            self.pieces = None
        head = self.head
        if head.content_length >= 0 and head.content_length != self.received:
            # RFC 9113 §8.1.1: a content-length that does not match makes the request malformed.
            self.connection.reset(self, frames.PROTOCOL_ERROR)
            return
        self.arrived = now_ns()
        head.route.handle(self)  # type: ignore[union-attr]

    def lost(self, code: int) -> None:
        owner, self.owner, self.on_writable = self.owner, None, None
        self.pieces = None
        if owner is not None:
            owner.abandoned()

    def writable(self) -> None:
        callback, self.on_writable = self.on_writable, None
        if callback is not None:
            callback()

    # Answering.

    def respond(self, status: int, headers: Headers, body: Sequence[Buffer]) -> None:
        self.owner = None
        if self.local_done:
            return
        length = sum(len(part) for part in body)
        block = response_block(status, (*headers, (b"content-length", b"%d" % length)))
        if not length or self.head.method == b"HEAD":
            self.send_headers(block, True)
            return
        self.send_headers(block, False)
        # A peer counts empty frames as a flood.
        parts = [part for part in body if len(part)]
        last = len(parts) - 1
        for index, part in enumerate(parts):
            self.send_data(part, index == last)

    def start(self, status: int, headers: Headers) -> None:
        if not self.local_done:
            self.send_headers(response_block(status, headers), False)

    def write(self, body: Sequence[Buffer]) -> None:
        if not self.local_done:
            for part in body:
                if len(part):
                    self.send_data(part)

    def end(self) -> None:
        self.owner = None
        if not self.local_done:
            self.send_data(b"", True)

    def abort(self) -> None:
        self.owner = None
        if not self.local_done:
            self.connection.reset(self, frames.INTERNAL_ERROR)

    def end_with_trailers(self, block: bytes) -> None:
        self.owner = None
        if not self.local_done:
            self.send_headers(block, True)

    def respond_unary(self, prefix: bytes, payload: Buffer, length: int, suffix: bytes) -> None:
        """Headers, one DATA frame and trailers in one go: a gRPC answer that fits the windows.

        ``prefix`` is an encoded header block, ``suffix`` a trailer block.
        """
        self.owner = None
        connection = self.connection
        if (
            self.remote_done
            and not self.local_done
            and length <= self.send_window
            and length <= connection.send_window
            and length <= connection.peer_max_frame
            and len(suffix) <= frames.DEFAULT_FRAME
            and not connection.write_paused
            and not connection.table_update_due
            and self.pending is None
        ):
            connection.send_window -= length
            self.local_done = True
            stream_id = self.id
            del connection.streams[stream_id]
            pack = frames.frame_header.pack
            size = len(prefix)
            connection.out += (
                pack(size >> 8, size & 0xFF, 1, 4, stream_id),
                prefix,
                pack(length >> 8, length & 0xFF, 0, 0, stream_id),
                payload,
                pack(len(suffix) >> 8, len(suffix) & 0xFF, 1, 5, stream_id),
                suffix,
            )
            connection.out_size += size + length + len(suffix) + 27
            if self.reserved:
                self.give_back(self.reserved)
            if not connection.in_callback and not connection.flush_planned:
                connection.plan_flush()
        elif not self.local_done:
            self.send_headers(prefix, False)
            self.send_data(payload)
            self.send_headers(suffix, True)

    def refuse(self, status: int, message: str) -> None:
        """Answers before the request is whole; what still comes of it is dropped."""
        self.pieces = None
        if self.head.is_grpc:
            # A gRPC client takes any status but 200 for a broken proxy; its own statuses come as trailers.
            code = _GRPC_REFUSALS.get(status, b"13")
            fields = [(b"grpc-status", code), (b"grpc-message", message.encode())]
            self.end_with_trailers(_encode([(b":status", b"200"), (b"content-type", b"application/grpc"), *fields]))
            return
        body, headers = self.connection.listener.error_body(message)
        self.respond(status, headers, [body])

    def refuse_memory(self) -> None:
        """Answers a request that there is no memory for, before anything was done for it."""
        self.refuse(503, self.no_memory())

    def shed(self) -> None:
        """There is no memory for an answer: refuses a request that has none yet, whatever is being done for it."""
        owner, self.owner = self.owner, None
        self.body = b""
        self.refuse_memory()
        # The refusal may wait for window. An answer that comes all the same goes nowhere.
        self.local_done = True
        if self.reserved:
            self.give_back(self.reserved)
        if owner is not None:
            owner.abandoned()

    def no_memory(self) -> str:
        return self.connection.listener.no_memory()


class Http2ServerConnection(Http2Connection):
    """One client's connection."""

    def __init__(self, listener: Listener) -> None:
        # First: it has the clock.
        self.listener = listener
        super().__init__(listener.limits, listener.loop, listener.budget)
        self.tick = listener.tick
        #: Tick at which it last had a stream: the time it may be idle begins there.
        self.busy_at = listener.tick
        self.preface_left = frames.PREFACE
        #: ``_shed`` will be called.
        self.shed_planned = False
        self.heads: dict[bytes, Head] = {}
        #: Hashes of blocks seen once. A block with a field of its own for each call (``traceparent``) never comes
        #: again and must not drive out those that do.
        self.blocks_seen: set[int] = set()

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

    def _receive(self, data: bytes) -> None:
        # Most reads are whole unary calls; what is not goes the long way, from where it begins.
        if not self.data_left and not self.unparsed and self.gathered is None and self.block is None:
            position = self._whole_calls(data)
            if position:
                if position == len(data):
                    return
                data = data[position:]
        super()._receive(data)

    def _whole_calls(self, data: bytes) -> int:
        """Takes requests whose head is known and whose body is one frame; returns where something else begins."""
        position, end = 0, len(data)
        limits, streams, share = self.limits, self.streams, self.share
        while end - position >= 18:
            high, low, kind, flags, stream_id = _unpack_header(data, position)
            stop = position + 9 + (high << 8 | low)
            if kind != 1 or flags != 4 or stop + 9 > end:
                break
            head = self.heads.get(data[position + 9 : stop])
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
        head = self.heads.get(block)
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
            self.listener.budget.refused += 1
            stream.remote_done = ends
            stream.refuse_memory()
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
            stream.refuse(413, f"the request's body is larger than max_body_bytes ({limit})")
            return
        if ends:
            stream.remote_done = True
            stream.ended()

    def _new_head(self, stream_id: int, block: bytes, ends: bool) -> Head | None:
        """Decodes and checks a block that is not memoised; None when the stream was refused."""
        if not self.settings_seen:
            self.settings_missing()
        decoder = self.decoder
        before = decoder.generation
        try:
            headers = self.decode(block)
        except HeaderListTooLarge as error:
            limits = self.limits
            stream = self.streams[stream_id] = ServerStream(self, stream_id, _REFUSED)
            stream.remote_done = ends
            stream.refuse(
                431, f"{error}; max_head_bytes is {limits.max_head_bytes}, max_headers is {limits.max_headers}"
            )
            return None
        finally:
            if decoder.generation != before:
                self.heads.clear()
        head = _head_of(headers)
        if head is None:
            self.count_control()
            self.put(frames.rst_stream(stream_id, frames.PROTOCOL_ERROR))
            return None
        if decoder.generation == before and len(block) <= _MAX_MEMOISED_BYTES:
            remember_second(block, head, self.heads, self.blocks_seen, _MAX_MEMOISED_HEADS)
        return head

    def _trailers(self, stream_id: int, block: bytes, ends: bool) -> None:
        """A second header block on a stream: trailers, which gRPC clients do not send but may."""
        if not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}, which no client can open")
        before = self.decoder.generation
        trailers: Headers = ()
        try:
            trailers = self.decode(block)
        except HeaderListTooLarge:
            pass
        if self.decoder.generation != before:
            self.heads.clear()
        stream = self.streams.get(stream_id)
        if stream is None:
            # Closed, perhaps by us a moment ago (RFC 9113 §5.1).
            self.count_control()
        elif stream.remote_done:
            self.count_control()
            self.reset(stream, frames.STREAM_CLOSED)
        elif not ends or any(name.startswith(b":") or malformed(name, value) for name, value in trailers):
            # RFC 9113 §8.1: trailers end the stream and hold no pseudo-header.
            self.count_control()
            self.reset(stream, frames.PROTOCOL_ERROR)
        else:
            stream.remote_done = True
            stream.ended()

    def overdrawn(self) -> None:
        """Answers of this connection leave hardly any memory to the process."""
        if not self.shed_planned:
            # Not here: the answer that was too much may be one of a batch, and its neighbours are being answered.
            self.shed_planned = True
            self.loop.call_soon(self._shed)

    def _shed(self) -> None:
        self.shed_planned = False
        # Looked at again: some may have been read since.
        if self.closed or not self.share.budget.is_overdrawn_by(self.unsent):
            return
        for stream in list(self.streams.values()):
            if stream.consumer is not None:
                stream.consumer.shed()
            elif not stream.begun and not stream.local_done:
                self.listener.budget.refused += 1
                stream.shed()

    def finished_early(self, stream: Stream) -> None:
        # RFC 9113 §8.1: an answer that needs no more of the request is followed by RST_STREAM(NO_ERROR).
        self.put(frames.rst_stream(stream.id, frames.NO_ERROR))
        self.streams.pop(stream.id, None)

    # What the listener calls.

    @property
    def is_busy(self) -> bool:
        return bool(self.streams)

    def check_timeouts(self, tick: int) -> None:
        """Called about once a second; also lets the flood counters forget."""
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
        """Refuses requests whose body does not come on."""
        limits = self.limits
        for stream in list(self.streams.values()):
            if stream.remote_done or stream.begun or stream.consumer is not None:
                continue
            if stream.received - stream.counted >= BODY_PROGRESS:
                stream.counted, stream.opened = stream.received, tick
            elif tick - stream.opened > limits.body_timeout:
                stream.refuse(408, f"the body did not arrive within body_timeout ({limits.body_timeout:g} s)")

    def end_idle_streams(self) -> None:
        """The server stops: calls that only wait for more to be asked are ended, others finish first."""
        for stream in list(self.streams.values()):
            if stream.consumer is not None:
                stream.consumer.stopping()

    def shut_down(self) -> None:
        """No new stream; closes when the last one is answered."""
        if self.closed or self.going_away:
            return
        self.going_away = True
        self.last_stream_announced = self.last_stream
        self.put(frames.goaway(self.last_stream, frames.NO_ERROR, b"server is stopping"))
        self.end_idle_streams()
        if not self.streams:
            self.flush()
            self.transport.close()


#: Stands in for the head of a stream that was refused before it was read.
_REFUSED = Head(b"", b"", ())


def _head_of(headers: Sequence[Header]) -> Head | None:
    """Checks a request's fields (RFC 9113 §8.2, §8.3); None: malformed."""
    pseudo: dict[bytes, bytes] = {}
    regular: list[Header] = []
    for name, value in headers:
        if name.startswith(b":"):
            if regular or name in pseudo or name not in (b":method", b":scheme", b":path", b":authority"):
                return None
            pseudo[name] = value
            continue
        if malformed(name, value):
            return None
        if name == b"te" and value.lower() != b"trailers":
            return None
        regular.append((name, value))
    method, path = pseudo.get(b":method"), pseudo.get(b":path")
    if not method or not path or b":scheme" not in pseudo:
        return None
    if not path.startswith(b"/") and path != b"*":
        return None
    # Neither may hold what would split a message when it is forwarded over HTTP/1.1.
    if not method.isalpha() or any(byte <= 0x20 or byte == 0x7F for byte in path):
        return None
    if any(byte <= 0x20 or byte == 0x7F for byte in pseudo.get(b":authority", b"")):
        return None
    head = Head(method, path, tuple(regular))
    head.is_http2 = True
    head.authority = pseudo.get(b":authority", b"")
    head.is_grpc = (head.get(b"content-type") or b"").startswith(b"application/grpc")
    length = head.get(b"content-length")
    if length is not None:
        if not length.isdigit() or len(length) > 18:
            return None
        if any(name == b"content-length" and value != length for name, value in regular):
            return None
        head.content_length = int(length)
    return head


def malformed(name: bytes, value: bytes) -> bool:
    """Fields no HTTP/2 message may carry: upper case, those of a connection, and bytes that split messages when they
    are forwarded over HTTP/1.1."""
    return (
        not name
        or name in _CONNECTION_HEADERS
        or name != name.lower()
        or b"\0" in value
        or b"\r" in value
        or b"\n" in value
        or b":" in name
        or any(byte <= 0x20 or byte >= 0x7F for byte in name)
    )
