"""The sending half of an HTTP/2 connection: frames, coalesced into few writes, within the peer's windows.

``Stream`` queues frames; ``FrameSender`` sends them, or keeps them per stream until there is window. The receiving
half, ``connection.Http2Connection``, builds on it.

Reading never depends on writing: frames are read even while others wait to be sent, since only a WINDOW_UPDATE may
release those. Memory is bounded by admission instead: a connection over its share of the budget gets no further stream,
and when its answers leave hardly any memory, streams whose answers have not begun are rejected. A peer that reads
nothing for ``write_timeout`` is disconnected; a slow reader is not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.budget import MemoryBudget, Share
from isochrone.wire.exchange import Buffer
from isochrone.wire.http2 import frames
from isochrone.wire.http2.flood import FloodGuard
from isochrone.wire.http2.frames import frame_header
from isochrone.wire.http2.hpack import EMPTY_TABLE_UPDATE
from isochrone.wire.http2.stream import Stream
from isochrone.wire.progress import Progress

#: Output up to this many bytes is joined into one write; larger output is written as a list of buffers.
_JOIN_LIMIT = 256 * 1024
#: Smaller buffers are joined before a vectored write: a megabyte in 16 KiB frames is sent twice as fast joined as in a
#: vectored write of 128 small buffers.
_VECTOR_SIZE = 128 * 1024

#: Bytes of frames without flow control that a peer may leave unread while it sends further frames.
_MAX_UNREAD = 1024 * 1024

_END_STREAM = frames.END_STREAM
_pack_header = frame_header.pack


class FrameSender(asyncio.Protocol):
    """The sending state of a connection, grouped by lifetime."""

    def __init__(self, limits: WireLimits, loop: asyncio.AbstractEventLoop, budget: MemoryBudget) -> None:
        # Per process.
        self.limits = limits
        self.loop = loop
        # Per connection.
        self.transport = cast(asyncio.Transport, None)
        self.closed = False
        #: GOAWAY was sent or received: no new stream.
        self.going_away = False
        self.streams: dict[int, Any] = {}
        #: Highest stream the peer opened.
        self.last_stream = 0
        #: The last stream in our first GOAWAY; a later one must not be higher (RFC 9113 §6.8).
        self.last_stream_announced: int | None = None
        self.send_window = frames.DEFAULT_WINDOW
        self.initial_send_window = frames.DEFAULT_WINDOW
        self.peer_max_frame = frames.DEFAULT_FRAME
        self.peer_max_streams = 1 << 31
        #: The peer's header table is smaller than the default: our next block must start with a size update to zero.
        self.table_update_due = False
        self.table_update_sent = False
        #: Streams with open windows, served in turn; some may have been dropped since.
        self.ready: deque[Stream] = deque()
        #: ``pump`` is running.
        self.pumping = False
        #: Unsent bytes of all streams.
        self.unsent = 0
        #: This connection's share of the process's memory.
        self.share = Share(budget)
        self.flood = FloodGuard(limits.max_control_frames_per_second)
        #: Whether the peer reads the bytes that were written.
        self.progress = Progress(self.tick_now())
        #: Tick at which queued bytes were last sent, or the first bytes were queued; and the bytes written by then.
        self.progressed = 0
        self.sent_until = 0
        #: Bytes of frames without flow control, written since the transport paused writing.
        self.unread = 0
        self.out: list[Buffer] = []
        self.out_size = 0
        self.in_callback = False
        self.flush_planned = False
        self.write_paused = False

    def tick_now(self) -> int:
        """The clock of timeouts; 0 on sides without one."""
        return 0

    def finished_early(self, stream: Stream) -> None:
        """We sent END_STREAM before the peer did."""

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self.unread = 0
        self.pump()
        for stream in list(self.streams.values()):
            if stream.pending is None:
                # Its producer may wait for the connection, with no queued bytes of its own.
                stream.writable()
        if self.out:
            self.flush()

    def acknowledge(self, stream: Stream) -> None:
        """Return the stream's window to the peer."""
        self.put(frames.window_update(stream.id, stream.unacknowledged))
        stream.unacknowledged = 0

    # Sending.

    def put(self, data: bytes) -> None:
        """Queue bytes; a connection writes once per loop turn."""
        self.out.append(data)
        self.out_size += len(data)
        if self.write_paused:
            # Heads, resets and acknowledgements need no window; while a peer reads, few of them are queued.
            self.unread += len(data)
            if self.unread > _MAX_UNREAD and not self.transport.is_closing():
                self.cut_stalled()
        if not self.in_callback and not self.flush_planned:
            self.plan_flush()

    def put_data(self, stream_id: int, payload: Buffer, end: bool) -> None:
        length = len(payload)
        # Counted with their size: some peers return their window in steps of a few KiB.
        self.flood.data_frames += 1 + (length >> 10)
        self.out.append(_pack_header(length >> 8, length & 0xFF, frames.DATA, 1 if end else 0, stream_id))
        self.out.append(payload)
        self.out_size += length + 9
        if not self.in_callback and not self.flush_planned:
            self.plan_flush()

    def put_headers(self, stream_id: int, block: bytes, end: bool) -> None:
        flags = _END_STREAM if end else 0
        if self.table_update_due:
            # RFC 7541 §4.2. Once is enough: our encoder never uses the table.
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
        """Schedule ``flush`` for the end of the current loop turn."""
        self.flush_planned = True
        self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self.flush_planned = False
        out = self.out
        if not out or self.closed:
            return
        self.out = []
        size, self.out_size = self.out_size, 0
        self.progress.written += size
        if size <= _JOIN_LIMIT:
            self.transport.write(b"".join(out))
        else:
            self.transport.writelines(_coalesce(out))
        if self.going_away and not self.streams:
            self.transport.close()

    def cut_stalled(self) -> None:
        """Abort the connection: the peer keeps sending and reads none of our replies."""
        self.going_away = True
        self.transport.abort()

    def count_queued(self, stream: Stream, length: int) -> None:
        """Count ``length`` bytes that a stream has queued."""
        if not self.unsent:
            self.progressed = self.tick_now()
        self.unsent += length
        self.share.add(length)
        self.make_ready(stream)
        # A producer that the pump calls back only queues bytes: the pump continues.
        if not self.pumping:
            self.pump()
        # After the pump, which may have sent the bytes.
        if self.share.budget.is_overdrawn_by(self.unsent):
            self.overdrawn()

    def overdrawn(self) -> None:
        """Called when this connection's unsent bytes leave hardly any memory to the process."""

    def make_ready(self, stream: Stream) -> None:
        """Queue a stream with unsent bytes for its turn, if its window is open."""
        if stream.send_window > 0 and not stream.queued and stream.id:
            stream.queued = True
            self.ready.append(stream)

    def pump(self) -> None:
        """Send queued frames, one per stream in turn, within the windows.

        The cost is proportional to the frames sent: streams with closed windows are not visited.
        """
        ready = self.ready
        self.pumping = True
        try:
            while ready and self.send_window > 0 and not self.write_paused:
                stream = ready.popleft()
                stream.queued = False
                if stream.pending is not None:
                    self._send_frame(stream)
                if self.out_size > _JOIN_LIMIT:
                    # The transport may pause writing before more is queued.
                    self.flush()
        finally:
            self.pumping = False

    def _send_frame(self, stream: Stream) -> None:
        """Send one DATA frame of a stream, and the following frames that need no window."""
        pending = cast("deque[tuple[int, Buffer, bool]]", stream.pending)
        room = min(stream.send_window, self.send_window, self.peer_max_frame)
        if room <= 0:
            return  # the window was closed while the stream waited; an update opens it
        _, payload, end = pending[0]
        length = len(payload)
        if length > room:
            view = memoryview(payload)
            pending[0] = (frames.DATA, view[room:], end)
            self._put_waiting(stream, view[:room], room, False)
            self.make_ready(stream)
            return
        pending.popleft()
        self._put_waiting(stream, payload, length, end)
        self.send_windowless(stream, pending, end)

    def send_windowless(self, stream: Stream, pending: deque[tuple[int, Buffer, bool]], end: bool) -> None:
        """Send the first queued frames that need no window; ``end``: END_STREAM was already sent."""
        while pending and not (pending[0][0] == frames.DATA and len(pending[0][1])):
            kind, payload, end = pending.popleft()
            if kind == frames.HEADERS:
                self.put_headers(stream.id, cast(bytes, payload), end)
            else:
                self.put_data(stream.id, payload, end)
        if pending:
            self.make_ready(stream)
            return
        stream.pending = None
        if end:
            stream.sent_end()
        else:
            stream.writable()

    def _put_waiting(self, stream: Stream, payload: Buffer, length: int, end: bool) -> None:
        stream.send_window -= length
        self.send_window -= length
        stream.progressed = self.progressed = self.tick_now()
        self._no_longer_unsent(stream, length)
        self.put_data(stream.id, payload, end)
        stream.sent_until = self.sent_until = self.progress.written + self.out_size

    def _no_longer_unsent(self, stream: Stream, length: int) -> None:
        stream.unsent -= length
        self.unsent -= length
        self.share.give_back(length)

    def note_progress(self, tick: int) -> None:
        """Record whether the peer has read bytes since the last call. Called about once a second."""
        if not self.unsent and not self.transport.get_write_buffer_size():
            self.progress.clear(tick)
            return
        before = self.progress.passed
        if not self.progress.update(self.transport, tick):
            return
        if before < self.sent_until or self.transport.get_write_buffer_size():
            self.progressed = tick
        for stream in self.streams.values():
            # The peer can open a window only for bytes that have arrived: until then, arriving bytes are progress.
            if stream.pending is not None and before < stream.sent_until:
                stream.progressed = tick

    def is_stalled(self, tick: int, seconds: float) -> bool:
        """Whether bytes are unsent and none was sent for ``seconds``, as of the last ``note_progress``."""
        if self.transport.get_write_buffer_size():
            return tick - self.progress.at > seconds
        return self.unsent > 0 and tick - self.progressed > seconds

    def stalled_streams(self, tick: int, seconds: float) -> list[Stream]:
        """Streams with unsent bytes of which none was sent for ``seconds`` because of the peer."""
        return [
            stream
            for stream in self.streams.values()
            if stream.pending is not None
            and tick - stream.progressed > seconds
            # A stream with an open window only waits for its turn while other streams make progress.
            and (stream.send_window <= 0 or tick - self.progressed > seconds)
        ]

    # Endings.

    def drop(self, stream: Stream, code: int) -> None:
        """End a stream early, and notify its owner."""
        self.streams.pop(stream.id, None)
        if stream.pending is not None:
            self._no_longer_unsent(stream, stream.unsent)
            stream.pending = None
        if stream.reserved:
            stream.give_back(stream.reserved)
        stream.local_done = True
        stream.lost(code)
        if self.going_away and not self.streams:
            self.flush()
            self.transport.close()

    def reset(self, stream: Stream, code: int) -> None:
        self.put(frames.rst_stream(stream.id, code))
        self.drop(stream, code)

    def fail(self, code: int, reason: str) -> None:
        """Close the connection after a GOAWAY with the error code and reason."""
        if self.closed:
            return
        last_stream = self.last_stream if self.last_stream_announced is None else self.last_stream_announced
        self.put(frames.goaway(last_stream, code, reason.encode()[:256]))
        self.flush()
        self.going_away = True
        self.transport.close()


def _coalesce(parts: Sequence[Buffer]) -> list[Buffer]:
    """Join runs of small buffers, so that a vectored write has few, large buffers."""
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
