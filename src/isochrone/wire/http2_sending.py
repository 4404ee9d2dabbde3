"""HTTP/2, the sending half of a connection: frames coalesced into few writes, within the peer's windows.

``Stream`` says what is to be sent; ``FrameSender`` sends it, or lets it wait for window stream by stream. The receiving
half, ``http2.Http2Connection``, builds on it. Memory that waits for a slow peer is bounded by ``max_unsent_bytes``.
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
from isochrone.wire.hpack import EMPTY_TABLE_UPDATE

#: Output up to this many bytes is joined into one write; larger goes out as a list of buffers.
_JOIN_LIMIT = 256 * 1024
#: Buffers from this size on are written from where they lie. A megabyte in 16 KiB frames goes out twice as fast
#: joined as through a vectored write of 128 small buffers.
_VECTOR_SIZE = 128 * 1024
#: Unsent bytes of one stream above which a producer is asked to wait.
_CONGESTED = 256 * 1024

_END_STREAM = frames.END_STREAM
_pack_header = frame_header.pack


class Stream:
    """One stream's flow control and what waits to be sent on it."""

    __slots__ = (
        "connection",
        "held",
        "id",
        "local_done",
        "pending",
        "progressed",
        "remote_done",
        "send_window",
        "unacknowledged",
    )

    def __init__(self, connection: FrameSender, stream_id: int) -> None:
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
        #: Tick at which something of ``pending`` last went out, or began to wait.
        self.progressed = 0

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
            self.progressed = connection.tick_now()
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


class FrameSender(asyncio.Protocol):
    """What a connection needs to send. State is grouped by lifetime."""

    def __init__(self, limits: WireLimits, loop: asyncio.AbstractEventLoop) -> None:
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
        self.blocked: dict[int, Stream] = {}
        #: Bytes that wait in blocked streams.
        self.unsent = 0
        self.out: list[Buffer] = []
        self.out_size = 0
        self.in_callback = False
        self.flush_planned = False
        self.write_paused = False
        self.reading_paused = False

    def tick_now(self) -> int:
        """The clock of timeouts, where the side has one."""
        return 0

    def finished_early(self, stream: Stream) -> None:
        """We sent END_STREAM before the peer did."""

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

    def acknowledge(self, stream: Stream) -> None:
        """Lets the peer send on."""
        self.put(frames.window_update(stream.id, stream.unacknowledged))
        stream.unacknowledged = 0

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
        stream.progressed = self.tick_now()
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
