"""HTTP/2, the sending half of a connection: frames coalesced into few writes, within the peer's windows.

``Stream`` queues what is to be sent; ``FrameSender`` sends it, or lets it wait for window stream by stream. The
receiving half, ``connection.Http2Connection``, builds on it.

Reading never depends on writing: whatever waits here, frames are read on, since only a WINDOW_UPDATE may let it go.
Memory is bounded by admission instead: a connection over its share of the budget gets no further stream, and when its
answers leave hardly any memory, streams whose answers have not begun are refused. A peer that takes nothing for
``write_timeout`` is cut; one that takes a little is not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.budget import MemoryBudget, Share
from isochrone.wire.exchange import Buffer
from isochrone.wire.http2 import frames
from isochrone.wire.http2.flood import FloodGuard
from isochrone.wire.http2.frames import frame_header
from isochrone.wire.http2.hpack import EMPTY_TABLE_UPDATE
from isochrone.wire.http2.stream import Stream
from isochrone.wire.progress import Progress

#: Output up to this many bytes is joined into one write; larger goes out as a list of buffers.
_JOIN_LIMIT = 256 * 1024
#: Buffers from this size on are written from where they lie. A megabyte in 16 KiB frames goes out twice as fast
#: joined as through a vectored write of 128 small buffers.
_VECTOR_SIZE = 128 * 1024

#: Bytes of frames without flow control that a peer may leave unread while it asks on.
_MAX_UNREAD = 1024 * 1024

_END_STREAM = frames.END_STREAM
_pack_header = frame_header.pack


class FrameSender(asyncio.Protocol):
    """What a connection needs to send. State is grouped by lifetime."""

    def __init__(self, limits: WireLimits, loop: asyncio.AbstractEventLoop, budget: MemoryBudget) -> None:
        # Per process.
        self.limits = limits
        self.loop = loop
        # Per connection.
        self.transport = cast(asyncio.Transport, None)
        self.closed = False
        #: GOAWAY sent or received: no new stream.
        self.going_away = False
        self.streams: dict[int, Any] = {}
        #: Highest stream the peer opened.
        self.last_stream = 0
        #: What our first GOAWAY said; a later one must not say more (RFC 9113 §6.8).
        self.last_stream_announced: int | None = None
        self.send_window = frames.DEFAULT_WINDOW
        self.initial_send_window = frames.DEFAULT_WINDOW
        self.peer_max_frame = frames.DEFAULT_FRAME
        self.peer_max_streams = 1 << 31
        #: The peer's header table is smaller than the default: our next block has to say that we use none.
        self.table_update_due = False
        self.table_update_sent = False
        #: Streams whose own window lets them send, in turn; some may have been dropped since.
        self.ready: deque[Stream] = deque()
        #: ``pump`` runs.
        self.pumping = False
        #: Bytes that wait in streams.
        self.unsent = 0
        #: This connection's part of the process's memory.
        self.share = Share(budget)
        self.flood = FloodGuard(limits.max_control_frames_per_second)
        #: What becomes of the bytes written.
        self.progress = Progress(self.tick_now())
        #: Tick at which something that waited last went out, or began to wait with nothing before it, and what was
        #: written by then.
        self.progressed = 0
        self.sent_until = 0
        #: Bytes that no window governs, written since the transport has had enough.
        self.unread = 0
        self.out: list[Buffer] = []
        self.out_size = 0
        self.in_callback = False
        self.flush_planned = False
        self.write_paused = False

    def tick_now(self) -> int:
        """The clock of timeouts, where the side has one."""
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
                # Its producer may have stopped for the connection's sake, with nothing of its own left to send.
                stream.writable()
        if self.out:
            self.flush()

    def acknowledge(self, stream: Stream) -> None:
        """Lets the peer send on."""
        self.put(frames.window_update(stream.id, stream.unacknowledged))
        stream.unacknowledged = 0

    # Sending.

    def put(self, data: bytes) -> None:
        """Queues bytes; one write per loop turn and connection."""
        self.out.append(data)
        self.out_size += len(data)
        if self.write_paused:
            # Heads, resets and acknowledgements need no window. A peer that reads keeps their number small.
            self.unread += len(data)
            if self.unread > _MAX_UNREAD and not self.transport.is_closing():
                self.cut_stalled()
        if not self.in_callback and not self.flush_planned:
            self.plan_flush()

    def put_data(self, stream_id: int, payload: Buffer, end: bool) -> None:
        length = len(payload)
        # What readers send back goes by bytes: some return their window in steps of a few KiB.
        self.flood.data_frames += 1 + (length >> 10)
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

    def waits(self, stream: Stream, length: int) -> None:
        """A stream has ``length`` bytes more to send than it may, or than fit its turn."""
        if not self.unsent:
            self.progressed = self.tick_now()
        self.unsent += length
        self.share.add(length)
        self.make_ready(stream)
        # A producer that is called back within the pump only queues: the pump goes on.
        if not self.pumping:
            self.pump()
        # What the pump has sent is no burden.
        if self.share.budget.is_overdrawn_by(self.unsent):
            self.overdrawn()

    def overdrawn(self) -> None:
        """What waits here leaves hardly any memory to the process."""

    def make_ready(self, stream: Stream) -> None:
        """Gives a stream that has something to send its turn, if its own window is open."""
        if stream.send_window > 0 and not stream.queued and stream.id:
            stream.queued = True
            self.ready.append(stream)

    def pump(self) -> None:
        """Sends what waits for window, stream by stream in turn, one frame each.

        Costs as much as it sends: streams with shut windows are not looked at.
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
                    # Lets the transport say when it has had enough, before more is queued.
                    self.flush()
        finally:
            self.pumping = False

    def _send_frame(self, stream: Stream) -> None:
        """One DATA frame of a stream, and what is behind it that needs no window."""
        pending = cast("deque[tuple[int, Buffer, bool]]", stream.pending)
        room = min(stream.send_window, self.send_window, self.peer_max_frame)
        if room <= 0:
            return  # its window was shut while it waited: an update opens it
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
        """Sends what is first in line and needs no window; ``end``: END_STREAM has gone out already."""
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
        """Called about once a second: has the peer's side taken anything since?"""
        if not self.unsent and not self.transport.get_write_buffer_size():
            self.progress.rest(tick)
            return
        before = self.progress.passed
        if not self.progress.look(self.transport, tick):
            return
        if before < self.sent_until or self.transport.get_write_buffer_size():
            self.progressed = tick
        for stream in self.streams.values():
            # A window can be opened only for what has arrived: until then, what arrives is progress.
            if stream.pending is not None and before < stream.sent_until:
                stream.progressed = tick

    def is_stalled(self, tick: int, seconds: float) -> bool:
        """Whether bytes wait here and none has gone for so long. ``note_progress`` comes first."""
        if self.transport.get_write_buffer_size():
            return tick - self.progress.at > seconds
        return self.unsent > 0 and tick - self.progressed > seconds

    def stalled_streams(self, tick: int, seconds: float) -> list[Stream]:
        """Streams of which nothing has gone for so long, though the peer might have let it."""
        return [
            stream
            for stream in self.streams.values()
            if stream.pending is not None
            and tick - stream.progressed > seconds
            # One that waits for its turn is not to blame while others have theirs.
            and (stream.send_window <= 0 or tick - self.progressed > seconds)
        ]

    # Endings.

    def drop(self, stream: Stream, code: int) -> None:
        """The stream is over before its time; whoever works on it is told."""
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
        """A connection error: says why, and closes."""
        if self.closed:
            return
        last_stream = self.last_stream if self.last_stream_announced is None else self.last_stream_announced
        self.put(frames.goaway(last_stream, code, reason.encode()[:256]))
        self.flush()
        self.going_away = True
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
