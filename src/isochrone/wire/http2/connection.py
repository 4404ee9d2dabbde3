"""The receiving half of an HTTP/2 connection (RFC 9113): reads frames, assembles header blocks, accounts for windows.

``Http2Connection`` is the asyncio protocol; the server and client sides subclass it and interpret HEADERS blocks. It is
as strict as the standard: a connection error ends the connection with GOAWAY and a reason. Push and priorities are not
supported.
"""

from __future__ import annotations

import asyncio
from typing import cast

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.budget import MemoryBudget
from isochrone.wire.bodies.direct_receiver import LARGE_BODY, SMALL_REST, DirectReceiver, may_receive_directly
from isochrone.wire.http2 import frames
from isochrone.wire.http2.control_frames import ControlFrames
from isochrone.wire.http2.frames import ConnectionFault, frame_header
from isochrone.wire.http2.hpack import Decoder, HpackError
from isochrone.wire.http2.stream import Stream

#: Smaller DATA frames on closed streams are counted as cheap frames.
_SMALL_FRAME = 1024
_END_STREAM = frames.END_STREAM
_unpack_header = frame_header.unpack_from


class Http2Connection(ControlFrames):
    """The protocol object of one connection. State is grouped by lifetime."""

    def __init__(self, limits: WireLimits, loop: asyncio.AbstractEventLoop, budget: MemoryBudget) -> None:
        super().__init__(limits, loop, budget)
        # Per connection.
        self.decoder = Decoder(4096, limits.max_head_bytes, limits.max_headers)
        # Receiving.
        self.unparsed = b""
        #: A large frame that is being received, and its size.
        self.gathered: bytearray | None = None
        self.gathered_size = 0
        #: A DATA frame that is being received: bytes left, its stream, whether it ends the stream.
        self.data_left = 0
        self.data_stream: Stream | None = None
        self.data_ends = False
        #: The transport's protocol while large DATA frames arrive.
        self.receiver: DirectReceiver | None = None
        #: A header block that CONTINUATION frames continue.
        self.block: bytearray | None = None
        self.block_stream = 0
        self.block_ends = False
        self.block_frames = 0
        self.unacknowledged = 0

    # Implemented by the sides.

    def headers_received(self, stream_id: int, block: bytes, ends: bool) -> None:
        raise NotImplementedError

    def connection_ended(self) -> None:
        """The connection is closed, and its streams are notified."""

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.receive(data)
        self.flush()

    def receive(self, data: bytes) -> None:
        """Process received bytes; frames to send wait for ``flush``."""
        self.in_callback = True
        try:
            self._receive(data)
            if self.pump_due:
                self.pump_due = False
                self.pump()
        except ConnectionFault as fault:
            self.fail(fault.code, str(fault))
        finally:
            self.in_callback = False

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        streams, self.streams = self.streams, {}
        self.ready.clear()
        self.out.clear()
        self.share.close()
        for stream in streams.values():
            stream.local_done = True
            stream.pending = None
            stream.unsent = stream.reserved = 0
            stream.lost(frames.CANCEL)
        self.connection_ended()

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
                if (
                    length >= LARGE_BODY
                    and self.receiver is None
                    and stream.receives_directly
                    and may_receive_directly(self.transport)
                ):
                    self.receiver = DirectReceiver(self)
                # The window is charged for the whole frame at its start.
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
                    if stream.unacknowledged and stream.unacknowledged + length > self.receive_window:
                        self._window_exceeded(stream)
                    stream.remote_done = True
                    if length:
                        stream.data(data[start:position])
                    stream.ended()
                elif length:
                    self._stream_data(stream, data[start:position])
                else:
                    self.count_control()
                continue
            if length > frames.DEFAULT_FRAME:
                self._check_large(kind, length)
            if position > end:
                position = start - 9
                break
            if kind == 1:
                if self.block is not None:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, "HEADERS inside a header block")
                if flags & 0x2C == 0x4:  # END_HEADERS, neither padded nor prioritised
                    self.headers_received(stream_id & 0x7FFFFFFF, data[start:position], bool(flags & _END_STREAM))
                else:
                    self._uncommon_headers(stream_id & 0x7FFFFFFF, data[start:position], flags)
            elif kind == frames.CONTINUATION:
                self._continuation(stream_id & 0x7FFFFFFF, flags, data[start:position])
            elif self.block is not None:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block must not be interrupted")
            else:
                self._control(kind, flags, stream_id & 0x7FFFFFFF, data[start:position])
        if position < end:
            self._hold(data, position)

    def _hold(self, data: bytes, position: int) -> None:
        """Keep the received part of a frame."""
        if len(data) - position >= 9:
            high, low = _unpack_header(data, position)[:2]
            if high >= 16:  # from 4 KiB on; joining piece by piece would have quadratic cost
                self.gathered = bytearray(data[position:])
                self.gathered_size = 9 + (high << 8 | low)
                return
        self.unparsed = data[position:]

    def _check_large(self, kind: int, length: int) -> None:
        """Check the size of a large frame other than DATA before it is received."""
        if length > self.limits.max_frame_bytes:
            self._oversized(length)
        # A block that is slightly too large is decoded, so that only its stream is rejected.
        if kind in (frames.HEADERS, frames.CONTINUATION) and length > 2 * self.limits.max_head_bytes:
            self._head_too_large()

    def _head_too_large(self) -> None:
        # The connection could continue only if the whole block were decoded (RFC 9113 §4.3).
        raise ConnectionFault(
            frames.ENHANCE_YOUR_CALM, f"a header block over max_head_bytes ({self.limits.max_head_bytes})"
        )

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
            self._end_data(stream)
        return position + take

    def _end_data(self, stream: Stream) -> None:
        """A DATA frame that was received in parts is complete."""
        self.data_stream = None
        if self.data_ends and stream.id in self.streams:
            stream.remote_done = True
            stream.ended()

    # Called by the direct receiver.

    def body_space(self) -> memoryview | None:
        stream = self.data_stream
        if stream is None or self.data_left < SMALL_REST or stream.remote_done or stream.id not in self.streams:
            return None
        return stream.space(self.data_left)

    def body_filled(self, space: memoryview, count: int) -> None:
        following = b""
        if count > self.data_left:
            following = bytes(space[self.data_left : count])
            count = self.data_left
        self.in_callback = True
        try:
            stream = cast(Stream, self.data_stream)
            self.data_left -= count
            self._charge_stream(stream, count)
            stream.filled(count)
            self._return_stream_window(stream)
            if not self.data_left:
                self._end_data(stream)
        except ConnectionFault as fault:
            self.fail(fault.code, str(fault))
        finally:
            self.in_callback = False
        if following and not self.transport.is_closing():
            self.receive(following)
        if self.out and not self.flush_planned:
            self.plan_flush()

    def receive_now(self, data: bytes) -> None:
        self.receive(data)
        if self.out and not self.flush_planned:
            self.plan_flush()

    def _window_exceeded(self, stream: Stream) -> None:
        raise ConnectionFault(frames.FLOW_CONTROL_ERROR, f"stream {stream.id} sent more than its window")

    def _stream_data(self, stream: Stream, piece: bytes) -> None:
        """Process a piece of a body; the stream's window is returned once half of it is used."""
        self._charge_stream(stream, len(piece))
        stream.data(piece)
        self._return_stream_window(stream)

    def _charge_stream(self, stream: Stream, count: int) -> None:
        stream.unacknowledged += count
        if stream.unacknowledged > self.receive_window:
            self._window_exceeded(stream)

    def _return_stream_window(self, stream: Stream) -> None:
        if stream.unacknowledged >= self.limits.stream_window >> 1 and stream.id in self.streams and not stream.held:
            self.acknowledge(stream)

    def _return_window(self) -> None:
        if self.unacknowledged > self.limits.connection_window:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "the connection sent more than its window")
        self.put(frames.window_update(0, self.unacknowledged))
        self.unacknowledged = 0

    def _data_on_closed(self, stream_id: int, length: int) -> None:
        if stream_id == 0 or self.idle_stream(stream_id):
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which is not open")
        # RFC 9113 §5.1: frames may be in flight when we close a stream; they count for the connection's window.
        self.unacknowledged += length
        if self.unacknowledged >= self.limits.connection_window >> 1:
            self._return_window()
        if not length:
            self.count_control()
        elif length < _SMALL_FRAME:
            self.count_follow_up()
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
        if not body and not flags & _END_STREAM:
            self.count_control()
        self._charge_stream(stream, len(payload))
        if body:
            stream.data(body)
        self._return_stream_window(stream)
        if flags & _END_STREAM and stream.id in self.streams:
            stream.remote_done = True
            stream.ended()

    def _uncommon_headers(self, stream_id: int, payload: bytes, flags: int) -> None:
        """HEADERS with padding, priority, or a block that continues in CONTINUATION frames."""
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

    def _continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        if self.block is None or stream_id != self.block_stream:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION without its HEADERS")
        self.block_frames += 1
        self.block += payload
        # CVE-2024-27316: endless CONTINUATION. The block's size is bounded, and so are tiny frames.
        if len(self.block) > self.limits.max_head_bytes or self.block_frames > 64:
            self._head_too_large()
        if flags & frames.END_HEADERS:
            block, self.block = bytes(self.block), None
            self.headers_received(stream_id, block, self.block_ends)

    def decode(self, block: bytes) -> tuple[tuple[bytes, bytes], ...]:
        """Decode a header block; raises ``HeaderListTooLarge`` if only its stream has to be rejected."""
        if len(block) > frames.DEFAULT_FRAME >> 1 and not self.flood.head(len(block), self.highest_stream):
            self._flooded("header blocks of many kilobytes")
        try:
            return self.decoder.decode(block)
        except HpackError as error:
            raise ConnectionFault(frames.COMPRESSION_ERROR, f"header block: {error}") from None

    def fail(self, code: int, reason: str) -> None:
        super().fail(code, reason)
        self.unparsed, self.gathered = b"", None
