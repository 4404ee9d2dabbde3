"""HTTP/2 (RFC 9113) as far as both ends share it: frames in, flow control both ways, coalesced frames out.

``Http2Connection`` is the asyncio protocol; the server and client sides subclass it and say what a HEADERS block means.
As strict as the standard: anything it calls a connection error ends the connection with GOAWAY and a reason, and floods
of cheap frames are counted and sent away. Push and priorities are not spoken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from isochrone.settings import WireLimits
from isochrone.wire import frames
from isochrone.wire.exchange import Buffer
from isochrone.wire.frames import frame_header
from isochrone.wire.hpack import DEFAULT_TABLE_SIZE, EMPTY_TABLE_UPDATE, Decoder, HpackError

#: Output up to this many bytes is joined into one write; larger goes out as a list of buffers.
_JOIN_LIMIT = 256 * 1024
#: Buffers from this size on are written from where they lie. A megabyte in 16 KiB frames goes out twice as fast
#: joined as through a vectored write of 128 small buffers.
_VECTOR_SIZE = 128 * 1024
#: Unsent bytes of one stream above which a producer is asked to wait.
_CONGESTED = 256 * 1024

_END_STREAM = frames.END_STREAM
_unpack_header = frame_header.unpack_from
_pack_header = frame_header.pack


class ConnectionFault(Exception):
    """The peer broke the protocol: GOAWAY with this code and reason, then close."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Stream:
    """One stream's flow control and what waits to be sent on it."""

    __slots__ = ("connection", "held", "id", "local_done", "pending", "remote_done", "send_window", "unacknowledged")

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        self.connection = connection
        self.id = stream_id
        #: How much the peer lets us send on this stream.
        self.send_window = connection.initial_send_window
        #: Bytes received and not yet given back as window.
        self.unacknowledged = 0
        #: END_STREAM received / sent.
        self.remote_done = False
        self.local_done = False
        #: Frames that wait for window, in order: (kind, payload, end). None on the fast path.
        self.pending: deque[tuple[int, Buffer, bool]] | None = None
        #: Whoever receives has enough: the peer gets no window back until it is released.
        self.held = False

    # What sides override.

    def data(self, payload: bytes) -> None:
        """A piece of the body. Pieces add up to the body; padding is gone."""

    def ended(self) -> None:
        """END_STREAM came."""

    def lost(self, code: int) -> None:
        """The stream was reset, or the connection went away, before it was over."""

    def writable(self) -> None:
        """What waited to be sent has gone out."""

    # Receiving.

    def hold_window(self) -> None:
        self.held = True

    def release_window(self) -> None:
        if self.held:
            self.held = False
            if self.unacknowledged and not self.remote_done:
                self.connection.acknowledge(self)

    # Sending.

    @property
    def is_congested(self) -> bool:
        if self.pending is None:
            return self.connection.write_paused
        return sum(len(payload) for _, payload, _ in self.pending) > _CONGESTED or self.connection.write_paused

    def send_headers(self, block: bytes, end: bool) -> None:
        if self.pending is not None:
            self.pending.append((frames.HEADERS, block, end))
            return
        self.connection.put_headers(self.id, block, end)
        if end:
            self._sent_end()

    def send_data(self, payload: Buffer, end: bool = False) -> None:
        """Sends as much as the windows allow; the rest waits its turn."""
        connection = self.connection
        length = len(payload)
        if (
            self.pending is None
            and length <= self.send_window
            and length <= connection.send_window
            and length <= connection.peer_max_frame
            and not connection.write_paused
        ):
            self.send_window -= length
            connection.send_window -= length
            connection.put_data(self.id, payload, end)
            if end:
                self._sent_end()
            return
        if self.pending is None:
            self.pending = deque()
            connection.blocked[self.id] = self
        self.pending.append((frames.DATA, payload, end))
        connection.unsent += length
        connection.pump()

    def _sent_end(self) -> None:
        self.local_done = True
        if self.remote_done:
            self.connection.streams.pop(self.id, None)
        else:
            self.connection.finished_early(self)


class Http2Connection(asyncio.Protocol):
    """The protocol object of one connection. State is grouped by lifetime."""

    def __init__(self, limits: WireLimits, loop: asyncio.AbstractEventLoop) -> None:
        # Per process.
        self.limits = limits
        self.loop = loop
        # Per connection.
        self.transport = cast(asyncio.Transport, None)
        self.closed = False
        #: GOAWAY sent or received: no new stream.
        self.going_away = False
        self.decoder = Decoder(4096, limits.max_head_bytes, limits.max_headers)
        self.streams: dict[int, Any] = {}
        #: Highest stream the peer opened.
        self.last_stream = 0
        self.settings_seen = False
        #: What our first GOAWAY said; a later one must not say more (RFC 9113 §6.8).
        self.last_stream_announced: int | None = None
        # Receiving.
        self.unparsed = b""
        #: A large frame that came in part, and its whole size.
        self.gathered: bytearray | None = None
        self.gathered_size = 0
        #: A DATA frame whose payload has not all come: its stream, bytes left, whether it ends the stream.
        self.data_left = 0
        self.data_stream: Stream | None = None
        self.data_ends = False
        #: A header block that CONTINUATION frames add to.
        self.block: bytearray | None = None
        self.block_stream = 0
        self.block_ends = False
        self.block_frames = 0
        self.unacknowledged = 0
        # Sending.
        self.send_window = frames.DEFAULT_WINDOW
        self.initial_send_window = frames.DEFAULT_WINDOW
        self.peer_max_frame = frames.DEFAULT_FRAME
        self.peer_max_streams = 1 << 31
        #: The peer's header table is smaller than the default: our next block has to say that we use none.
        self.table_update_due = False
        self.table_update_sent = False
        self.blocked: dict[int, Stream] = {}
        #: Bytes that wait in blocked streams.
        self.unsent = 0
        self.out: list[Buffer] = []
        self.out_size = 0
        self.in_callback = False
        self.flush_planned = False
        self.write_paused = False
        self.reading_paused = False
        #: Cheap frames since the last check; floods are cut.
        self.control_frames = 0

    # What the sides say.

    def headers_received(self, stream_id: int, block: bytes, ends: bool) -> None:
        raise NotImplementedError

    def finished_early(self, stream: Stream) -> None:
        """We sent END_STREAM before the peer did."""

    def idle_stream(self, stream_id: int) -> bool:
        """Whether this stream has never been opened (RFC 9113 §5.1: using it is a connection error)."""
        raise NotImplementedError

    def connection_ended(self) -> None:
        """The connection is gone; streams have been told."""

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.receive(data)
        self.flush()

    def receive(self, data: bytes) -> None:
        """Works on what was read; frames to send wait for ``flush``."""
        self.in_callback = True
        try:
            self._receive(data)
        except ConnectionFault as fault:
            self.fail(fault.code, str(fault))
        finally:
            self.in_callback = False

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        streams, self.streams = self.streams, {}
        self.blocked.clear()
        self.out.clear()
        for stream in streams.values():
            stream.local_done = True
            stream.pending = None
            stream.lost(frames.CANCEL)
        self.connection_ended()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self.pump()
        for stream in list(self.streams.values()):
            if stream.pending is None:
                # Its producer may have stopped for the connection's sake, with nothing of its own left to send.
                stream.writable()
        if self.out:
            self.flush()
        if self.reading_paused and not self.closed and self.unsent <= self.limits.max_unsent_bytes // 2:
            self.reading_paused = False
            self.transport.resume_reading()

    # Receiving.

    def _receive(self, data: bytes) -> None:
        position = 0
        end = len(data)
        if self.data_left:
            position = self._continue_data(data, 0, end)
        elif self.unparsed:
            data = self.unparsed + data
            self.unparsed = b""
            end = len(data)
        elif self.gathered is not None:
            self.gathered += data
            if len(self.gathered) < self.gathered_size:
                return
            data, self.gathered = bytes(self.gathered), None
            end = len(data)
        streams = self.streams
        while end - position >= 9:
            high, low, kind, flags, stream_id = _unpack_header(data, position)
            length = high << 8 | low
            start = position + 9
            position = start + length
            if kind == 0:
                if self.block is not None:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA inside a header block")
                if length > self.limits.max_frame_bytes:
                    self._oversized(length)
                stream = streams.get(stream_id)
                if stream is None:
                    # RFC 9113 §4.1: the reserved bit is ignored.
                    stream_id &= 0x7FFFFFFF
                    stream = streams.get(stream_id)
                if stream is None or stream.remote_done:
                    if position > end:
                        self._hold(data, start - 9)
                        return
                    self._data_on_closed(stream_id, length)
                    continue
                if flags & 0x8:  # padded
                    if position > end:
                        self._hold(data, start - 9)
                        return
                    self._padded_data(stream, data[start:position], flags)
                    continue
                # The window is charged when the frame begins, whole.
                self.unacknowledged += length
                if self.unacknowledged >= self.limits.connection_window >> 1:
                    self._return_window()
                if position > end:
                    self.data_stream, self.data_left, self.data_ends = (
                        stream,
                        length,
                        bool(flags & _END_STREAM),
                    )
                    position = self._continue_data(data, start, end)
                    return
                if flags & _END_STREAM:
                    # Most bodies are one frame, and that fits the window.
                    if stream.unacknowledged and stream.unacknowledged + length > self.limits.stream_window:
                        self._window_exceeded(stream)
                    if length:
                        stream.data(data[start:position])
                    stream.remote_done = True
                    stream.ended()
                elif length:
                    self._stream_data(stream, data[start:position])
                else:
                    self.count_control()
                continue
            if position > end:
                if length > self.limits.max_frame_bytes:
                    self._oversized(length)
                position = start - 9
                break
            if length > frames.DEFAULT_FRAME and length > self.limits.max_frame_bytes:
                self._oversized(length)
            if kind == 1:
                if self.block is not None:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, "HEADERS inside a header block")
                if flags & 0x2C == 0x4:  # END_HEADERS, neither padded nor prioritised
                    self.headers_received(stream_id & 0x7FFFFFFF, data[start:position], bool(flags & _END_STREAM))
                else:
                    self._uncommon_headers(stream_id & 0x7FFFFFFF, data[start:position], flags)
            else:
                self._control(kind, flags, stream_id & 0x7FFFFFFF, data[start:position])
        if position < end:
            self._hold(data, position)

    def _hold(self, data: bytes, position: int) -> None:
        """Keeps the part of a frame that has come."""
        if len(data) - position >= 9:
            high, low = _unpack_header(data, position)[:2]
            if high >= 16:  # from 4 KiB on; joining piece by piece would cost the square of its size
                self.gathered = bytearray(data[position:])
                self.gathered_size = 9 + (high << 8 | low)
                return
        self.unparsed = data[position:]

    def _oversized(self, length: int) -> None:
        raise ConnectionFault(
            frames.FRAME_SIZE_ERROR,
            f"a frame of {length} bytes; max_frame_bytes is {self.limits.max_frame_bytes}",
        )

    def _continue_data(self, data: bytes, position: int, end: int) -> int:
        take = min(self.data_left, end - position)
        self.data_left -= take
        stream = cast(Stream, self.data_stream)
        if take and not (stream.remote_done or stream.id not in self.streams):
            piece = data if take == len(data) else data[position : position + take]
            self._stream_data(stream, piece)
        if not self.data_left:
            self.data_stream = None
            if self.data_ends and stream.id in self.streams:
                stream.remote_done = True
                stream.ended()
        return position + take

    def _window_exceeded(self, stream: Stream) -> None:
        raise ConnectionFault(frames.FLOW_CONTROL_ERROR, f"stream {stream.id} sent more than its window")

    def _stream_data(self, stream: Stream, piece: bytes) -> None:
        """A piece of a body that goes on: its window is given back once half is used."""
        stream.unacknowledged += len(piece)
        if stream.unacknowledged > self.limits.stream_window:
            self._window_exceeded(stream)
        stream.data(piece)
        if stream.unacknowledged >= self.limits.stream_window >> 1 and stream.id in self.streams and not stream.held:
            self.acknowledge(stream)

    def acknowledge(self, stream: Stream) -> None:
        """Lets the peer send on."""
        self.put(frames.window_update(stream.id, stream.unacknowledged))
        stream.unacknowledged = 0

    def _return_window(self) -> None:
        if self.unacknowledged > self.limits.connection_window:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "the connection sent more than its window")
        self.put(frames.window_update(0, self.unacknowledged))
        self.unacknowledged = 0

    def _data_on_closed(self, stream_id: int, length: int) -> None:
        if stream_id == 0 or self.idle_stream(stream_id):
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which is not open")
        # RFC 9113 §5.1: frames may be under way when we close a stream; they count for the connection's window.
        self.unacknowledged += length
        if self.unacknowledged >= self.limits.connection_window >> 1:
            self._return_window()
        self.count_control()
        stream = self.streams.get(stream_id)
        if stream is not None and stream.remote_done:
            self.put(frames.rst_stream(stream_id, frames.STREAM_CLOSED))
            self.drop(stream, frames.STREAM_CLOSED)

    def _padded_data(self, stream: Stream, payload: bytes, flags: int) -> None:
        if not payload or payload[0] >= len(payload):
            raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA padding is longer than the frame")
        self.unacknowledged += len(payload)
        if self.unacknowledged >= self.limits.connection_window >> 1:
            self._return_window()
        body = payload[1 : len(payload) - payload[0]]
        stream.unacknowledged += len(payload) - len(body)
        if not body and not flags & _END_STREAM:
            self.count_control()
        self._stream_data(stream, body)
        if flags & _END_STREAM and stream.id in self.streams:
            stream.remote_done = True
            stream.ended()

    def _uncommon_headers(self, stream_id: int, payload: bytes, flags: int) -> None:
        """HEADERS with padding, priority, or a block that goes on in CONTINUATION frames."""
        start, stop = 0, len(payload)
        if flags & frames.PADDED:
            if not payload or payload[0] >= stop:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "HEADERS padding is longer than the frame")
            stop -= payload[0]
            start = 1
        if flags & frames.PRIORITISED:
            if stop - start < 5:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
            if frames.uint32.unpack_from(payload, start)[0] & 0x7FFFFFFF == stream_id:
                raise ConnectionFault(frames.PROTOCOL_ERROR, f"stream {stream_id} depends on itself")
            start += 5
        block = payload[start:stop]
        ends = bool(flags & _END_STREAM)
        if flags & frames.END_HEADERS:
            self.headers_received(stream_id, block, ends)
        else:
            self.block, self.block_stream, self.block_ends, self.block_frames = (
                bytearray(block),
                stream_id,
                ends,
                0,
            )

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.CONTINUATION:
            self._continuation(stream_id, flags, payload)
            return
        if self.block is not None:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block must not be interrupted")
        if not self.settings_seen and kind != frames.SETTINGS:
            self.settings_missing()
        if kind == frames.WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == frames.SETTINGS:
            self._settings(stream_id, flags, payload)
        elif kind == frames.PING:
            if stream_id:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "PING on a stream")
            if len(payload) != 8:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes, expected 8")
            self.count_control()
            if flags & frames.ACK:
                self.ping_acknowledged(payload)
            else:
                self.put(frames.ping_ack(payload))
        elif kind == frames.RST_STREAM:
            if len(payload) != 4:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"RST_STREAM of {len(payload)} bytes, expected 4")
            if stream_id == 0 or self.idle_stream(stream_id):
                raise ConnectionFault(frames.PROTOCOL_ERROR, f"RST_STREAM on stream {stream_id}, which is not open")
            self.count_control()
            stream = self.streams.get(stream_id)
            if stream is not None:
                self.drop(stream, frames.uint32.unpack(payload)[0])
        elif kind == frames.GOAWAY:
            if stream_id:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
            if len(payload) < 8:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "GOAWAY is too short")
            last_stream, code = frames.goaway_fields.unpack_from(payload)
            self.goaway_received(last_stream & 0x7FFFFFFF, code, payload[8:])
        elif kind == frames.PRIORITY:
            if len(payload) != 5:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes, expected 5")
            if stream_id == 0:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "PRIORITY without a stream")
            if frames.uint32.unpack_from(payload)[0] & 0x7FFFFFFF == stream_id:
                raise ConnectionFault(frames.PROTOCOL_ERROR, f"stream {stream_id} depends on itself")
            self.count_control()
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PUSH_PROMISE, which is switched off")
        else:
            # RFC 9113 §4.1: frames of unknown types are ignored.
            self.count_control()

    def settings_missing(self) -> None:
        raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")

    def goaway_received(self, last_stream: int, code: int, reason: bytes) -> None:
        self.going_away = True
        if not self.streams:
            self.transport.close()

    def ping_acknowledged(self, payload: bytes) -> None:
        """An answer to a PING of ours."""

    def _continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        if self.block is None or stream_id != self.block_stream:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION without its HEADERS")
        self.block_frames += 1
        self.block += payload
        # CVE-2024-27316: endless CONTINUATION. The block's size is bounded, and so are tiny frames.
        if len(self.block) > self.limits.max_head_bytes or self.block_frames > 64:
            raise ConnectionFault(
                frames.ENHANCE_YOUR_CALM, f"a header block over max_head_bytes ({self.limits.max_head_bytes})"
            )
        if flags & frames.END_HEADERS:
            block, self.block = bytes(self.block), None
            self.headers_received(stream_id, block, self.block_ends)

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(payload)} bytes, expected 4")
        increment = frames.uint32.unpack(payload)[0] & 0x7FFFFFFF
        if stream_id == 0:
            if increment == 0:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.send_window += increment
            if self.send_window > frames.MAX_WINDOW:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "the connection's window overflows")
        else:
            stream = self.streams.get(stream_id)
            if stream is None:
                if self.idle_stream(stream_id):
                    raise ConnectionFault(frames.PROTOCOL_ERROR, f"WINDOW_UPDATE on idle stream {stream_id}")
                return
            stream.send_window += increment
            if increment == 0 or stream.send_window > frames.MAX_WINDOW:
                code = frames.FLOW_CONTROL_ERROR if increment else frames.PROTOCOL_ERROR
                self.put(frames.rst_stream(stream_id, code))
                self.drop(stream, code)
                return
        if self.blocked:
            self.pump()

    def _settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload")
            return
        if len(payload) % 6:
            raise ConnectionFault(
                frames.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes, expected a multiple of 6"
            )
        self.count_control()
        self.settings_seen = True
        for key, value in frames.setting.iter_unpack(payload):
            if key == frames.SETTINGS_INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ConnectionFault(frames.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE {value}")
                change = value - self.initial_send_window
                self.initial_send_window = value
                for stream in self.streams.values():
                    stream.send_window += change
                    if stream.send_window > frames.MAX_WINDOW:
                        raise ConnectionFault(frames.FLOW_CONTROL_ERROR, f"stream {stream.id}'s window overflows")
            elif key == frames.SETTINGS_MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME <= value < 1 << 24:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, f"MAX_FRAME_SIZE {value}")
                self.peer_max_frame = value
            elif key == frames.SETTINGS_ENABLE_PUSH:
                if not self.peer_may_push(value):
                    raise ConnectionFault(frames.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
            elif key == frames.SETTINGS_MAX_CONCURRENT_STREAMS:
                self.peer_max_streams = value
            elif key == frames.SETTINGS_HEADER_TABLE_SIZE and value < DEFAULT_TABLE_SIZE:
                self.table_update_due = not self.table_update_sent
        self.put(frames.SETTINGS_ACK)
        self.settings_changed()
        if self.blocked:
            self.pump()

    def peer_may_push(self, value: int) -> bool:
        """Whether ENABLE_PUSH may have this value."""
        return value <= 1

    def settings_changed(self) -> None:
        """The peer's settings were applied."""

    def decode(self, block: bytes) -> tuple[tuple[bytes, bytes], ...]:
        """Decodes a header block; raises ``HeaderListTooLarge`` for one that may be refused stream by stream."""
        try:
            return self.decoder.decode(block)
        except HpackError as error:
            raise ConnectionFault(frames.COMPRESSION_ERROR, f"header block: {error}") from None

    def count_control(self) -> None:
        self.control_frames += 1
        if self.control_frames > self.limits.max_control_frames_per_second:
            limit = self.limits.max_control_frames_per_second
            raise ConnectionFault(
                frames.ENHANCE_YOUR_CALM, f"too many control frames; max_control_frames_per_second is {limit}"
            )

    # Sending.

    def put(self, data: bytes) -> None:
        """Queues bytes; one write per loop turn and connection."""
        self.out.append(data)
        self.out_size += len(data)
        if not self.in_callback and not self.flush_planned:
            self.plan_flush()

    def put_data(self, stream_id: int, payload: Buffer, end: bool) -> None:
        length = len(payload)
        self.out.append(_pack_header(length >> 8, length & 0xFF, frames.DATA, 1 if end else 0, stream_id))
        self.out.append(payload)
        self.out_size += length + 9
        if not self.in_callback and not self.flush_planned:
            self.plan_flush()

    def put_headers(self, stream_id: int, block: bytes, end: bool) -> None:
        flags = _END_STREAM if end else 0
        if self.table_update_due:
            # RFC 7541 §4.2. Once is enough: our encoder keeps its table empty for good.
            self.table_update_due, self.table_update_sent = False, True
            block = EMPTY_TABLE_UPDATE + block
        if len(block) <= self.peer_max_frame:
            self.put(frames.frame(frames.HEADERS, flags | frames.END_HEADERS, stream_id, block))
            return
        size = self.peer_max_frame
        pieces = [block[index : index + size] for index in range(0, len(block), size)]
        self.put(frames.frame(frames.HEADERS, flags, stream_id, pieces[0]))
        for piece in pieces[1:-1]:
            self.put(frames.frame(frames.CONTINUATION, 0, stream_id, piece))
        self.put(frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream_id, pieces[-1]))

    def plan_flush(self) -> None:
        """Has ``flush`` called when what runs now is done."""
        self.flush_planned = True
        self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self.flush_planned = False
        out = self.out
        if not out or self.closed:
            return
        self.out = []
        size, self.out_size = self.out_size, 0
        if size <= _JOIN_LIMIT:
            self.transport.write(b"".join(out))
        else:
            self.transport.writelines(_coalesce(out))
        if self.write_paused or self.going_away:
            self._flushed()

    def _flushed(self) -> None:
        if self.going_away and not self.streams:
            self.transport.close()
        elif (
            self.write_paused
            and not self.reading_paused
            and self.transport.get_write_buffer_size() > self.limits.max_unsent_bytes
        ):
            # Answers without a body need no window, so nothing else would hold back who never reads them.
            self.unsent_exceeded()

    def pump(self) -> None:
        """Sends what waits for window, stream by stream in turn, one frame each."""
        while self.blocked and not self.write_paused:
            progress = False
            for stream in list(self.blocked.values()):
                # A producer called back in this loop may have sent or dropped what others had waiting.
                if stream.pending is not None:
                    progress |= self._pump_stream(stream)
            if self.out_size > _JOIN_LIMIT:
                # Lets the transport say when it has had enough, before more is queued.
                self.flush()
            if not progress:
                break
        if self.unsent > self.limits.max_unsent_bytes and not self.reading_paused and not self.closed:
            self.unsent_exceeded()

    def unsent_exceeded(self) -> None:
        if self.write_paused:
            self.reading_paused = True
            self.transport.pause_reading()
        else:
            # The peer's windows are shut. Reading must go on, or no WINDOW_UPDATE could open them; so it has to go.
            limit = self.limits.max_unsent_bytes
            self.fail(frames.ENHANCE_YOUR_CALM, f"unread answers exceed max_unsent_bytes ({limit})")

    def _pump_stream(self, stream: Stream) -> bool:
        pending = cast("deque[tuple[int, Buffer, bool]]", stream.pending)
        kind, payload, end = pending[0]
        if kind == frames.HEADERS:
            self.put_headers(stream.id, cast(bytes, payload), end)
        else:
            length = len(payload)
            room = min(stream.send_window, self.send_window, self.peer_max_frame)
            if room <= 0 and length:
                return False
            if length > room:
                view = memoryview(payload)
                pending[0] = (kind, view[room:], end)
                payload, end, length = view[:room], False, room
                self._charge(stream, payload, length, False)
                return True
            self._charge(stream, payload, length, end)
        pending.popleft()
        if not pending:
            stream.pending = None
            self.blocked.pop(stream.id, None)
            if not end:
                stream.writable()
        if end:
            stream._sent_end()
        return True

    def _charge(self, stream: Stream, payload: Buffer, length: int, end: bool) -> None:
        stream.send_window -= length
        self.send_window -= length
        self.unsent -= length
        self.put_data(stream.id, payload, end)

    # Endings.

    def drop(self, stream: Stream, code: int) -> None:
        """The stream is over before its time; whoever works on it is told."""
        self.streams.pop(stream.id, None)
        self.blocked.pop(stream.id, None)
        if stream.pending is not None:
            self.unsent -= sum(len(payload) for kind, payload, _ in stream.pending if kind == frames.DATA)
            stream.pending = None
        stream.local_done = True
        stream.lost(code)
        if self.going_away and not self.streams:
            self.flush()
            self.transport.close()

    def reset(self, stream: Stream, code: int) -> None:
        self.put(frames.rst_stream(stream.id, code))
        self.drop(stream, code)

    def fail(self, code: int, reason: str) -> None:
        """A connection error: says why, and closes."""
        if self.closed:
            return
        last_stream = self.last_stream if self.last_stream_announced is None else self.last_stream_announced
        self.put(frames.goaway(last_stream, code, reason.encode()[:256]))
        self.flush()
        self.going_away = True
        self.unparsed, self.gathered = b"", None
        self.transport.close()


def _coalesce(parts: Sequence[Buffer]) -> list[Buffer]:
    """Joins runs of small buffers, so that a vectored write carries few and large ones."""
    result: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < _VECTOR_SIZE:
            small.append(part)
            continue
        if small:
            result.append(b"".join(small))
            small = []
        result.append(part)
    if small:
        result.append(b"".join(small))
    return result
