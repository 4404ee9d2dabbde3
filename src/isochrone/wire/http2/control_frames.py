"""HTTP/2 control frames: SETTINGS, WINDOW_UPDATE, PING, RST_STREAM, GOAWAY, PRIORITY (RFC 9113 §6).

``connection.Http2Connection`` reads frames, and passes those here that are neither DATA nor part of a header block.
Cheap frames are counted; a flood of them ends the connection.
"""

from __future__ import annotations

import asyncio

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.budget import MemoryBudget
from isochrone.wire.http2 import frames
from isochrone.wire.http2.frames import ConnectionFault
from isochrone.wire.http2.hpack import DEFAULT_TABLE_SIZE
from isochrone.wire.http2.sending import FrameSender
from isochrone.wire.http2.stream import Stream

#: Largest frame that we send, even if the peer accepts larger frames.
_MAX_SENT_FRAME = 1024 * 1024


class ControlFrames(FrameSender):
    """A connection's settings and windows, as the peer's frames set them."""

    def __init__(self, limits: WireLimits, loop: asyncio.AbstractEventLoop, budget: MemoryBudget) -> None:
        super().__init__(limits, loop, budget)
        self.settings_seen = False
        #: The receive window of a stream: the protocol's default applies until the peer has acknowledged our setting.
        self.receive_window = max(limits.stream_window, frames.DEFAULT_WINDOW)
        #: The frames being read have opened windows.
        self.pump_due = False

    # Implemented by the sides.

    def idle_stream(self, stream_id: int) -> bool:
        """Whether this stream has never been opened (RFC 9113 §5.1: using it is a connection error)."""
        raise NotImplementedError

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
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
            if not flags & frames.ACK:
                self.put(frames.ping_ack(payload))
        elif kind == frames.RST_STREAM:
            if len(payload) != 4:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"RST_STREAM of {len(payload)} bytes, expected 4")
            if stream_id == 0 or self.idle_stream(stream_id):
                raise ConnectionFault(frames.PROTOCOL_ERROR, f"RST_STREAM on stream {stream_id}, which is not open")
            stream = self.streams.get(stream_id)
            if stream is None:
                self.count_follow_up()  # the reset crossed our answer
                return
            if self.is_rapid(stream):
                self.count_control()
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

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(payload)} bytes, expected 4")
        increment = frames.uint32.unpack(payload)[0] & 0x7FFFFFFF
        self.count_follow_up()
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
                # CVE-2025-8671: a peer that makes us reset its streams cancels requests as one that resets them does.
                self.count_control()
                code = frames.FLOW_CONTROL_ERROR if increment else frames.PROTOCOL_ERROR
                self.put(frames.rst_stream(stream_id, code))
                self.drop(stream, code)
                return
            if stream.pending is None:
                return
            self.make_ready(stream)
        # Once for all updates, after all received frames are processed.
        self.pump_due = True

    def _settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload")
            self.count_control()
            self.receive_window = self.limits.stream_window
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
                    if stream.pending is not None:
                        self.make_ready(stream)
            elif key == frames.SETTINGS_MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME <= value < 1 << 24:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, f"MAX_FRAME_SIZE {value}")
                # Frames of 16 MiB would put 16 MiB per connection into transports, which are not counted.
                self.peer_max_frame = min(value, _MAX_SENT_FRAME)
            elif key == frames.SETTINGS_ENABLE_PUSH:
                if not self.peer_may_push(value):
                    raise ConnectionFault(frames.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
            elif key == frames.SETTINGS_MAX_CONCURRENT_STREAMS:
                self.peer_max_streams = value
            elif key == frames.SETTINGS_HEADER_TABLE_SIZE and value < DEFAULT_TABLE_SIZE:
                self.table_update_due = not self.table_update_sent
        self.put(frames.SETTINGS_ACK)
        self.settings_changed()
        self.pump_due = True

    def peer_may_push(self, value: int) -> bool:
        """Whether ENABLE_PUSH may have this value."""
        return value <= 1

    def settings_changed(self) -> None:
        """The peer's settings were applied."""

    def is_rapid(self, stream: Stream) -> bool:
        """Whether a reset of this stream came too soon to be a timeout."""
        return True

    @property
    def highest_stream(self) -> int:
        """The last stream opened by either side."""
        return self.last_stream

    def count_control(self) -> None:
        if not self.flood.control(self.highest_stream):
            self._flooded("control frames")

    def count_follow_up(self) -> None:
        if not self.flood.follow_up(self.highest_stream):
            self._flooded("frames that only follow answers")

    def _flooded(self, kind: str) -> None:
        limit = self.limits.max_control_frames_per_second
        raise ConnectionFault(frames.ENHANCE_YOUR_CALM, f"too many {kind}; max_control_frames_per_second is {limit}")
