"""One HTTP/2 stream: its flow control in both directions, and what waits to be sent on it.

The server and client sides subclass ``Stream``; ``sending.FrameSender`` sends what it queues.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from isochrone.wire.budget import SMALL, Share
from isochrone.wire.exchange import Buffer
from isochrone.wire.http2 import frames
from isochrone.wire.progress import Progress

#: Unsent bytes of one stream above which a producer is asked to wait.
_CONGESTED = 256 * 1024
#: Bytes that one turn of the loop may gather for a connection's write before large frames wait for it.
_MAX_OUT = 256 * 1024


class StreamConnection(Protocol):
    """As much of an HTTP/2 connection as its streams use; see ``sending.FrameSender``."""

    initial_send_window: int
    out_size: int
    peer_max_frame: int
    progress: Progress
    send_window: int
    share: Share
    streams: dict[int, Any]
    write_paused: bool

    def acknowledge(self, stream: Stream) -> None: ...

    def finished_early(self, stream: Stream) -> None: ...

    def put_data(self, stream_id: int, payload: Buffer, end: bool) -> None: ...

    def put_headers(self, stream_id: int, block: bytes, end: bool) -> None: ...

    def tick_now(self) -> int: ...

    def waits(self, stream: Stream, length: int) -> None: ...


class Stream:
    """One stream's flow control and what waits to be sent on it."""

    __slots__ = (
        "begun",
        "connection",
        "held",
        "id",
        "local_done",
        "pending",
        "progressed",
        "queued",
        "remote_done",
        "reserved",
        "send_window",
        "sent_until",
        "unacknowledged",
        "unsent",
    )

    def __init__(self, connection: StreamConnection, stream_id: int) -> None:
        self.connection = connection
        self.id = stream_id
        #: How much the peer lets us send on this stream.
        self.send_window = connection.initial_send_window
        #: Bytes received and not yet given back as window.
        self.unacknowledged = 0
        #: END_STREAM received; sent, or last of what waits.
        self.remote_done = False
        self.local_done = False
        #: Our header block has gone out, or waits.
        self.begun = False
        #: Frames that wait for window, in order: (kind, payload, end). The first is always DATA with a payload, since
        #: nothing else needs a window. None on the fast path.
        self.pending: deque[tuple[int, Buffer, bool]] | None = None
        #: Bytes of ``pending``.
        self.unsent = 0
        #: It stands in the connection's ``ready`` queue.
        self.queued = False
        #: The receiver has enough: the peer gets no window back until it is released.
        self.held = False
        #: Tick at which something of ``pending`` last went out, arrived, or began to wait.
        self.progressed = 0
        #: What the connection had written by then; of no meaning without ``pending``.
        self.sent_until = 0
        #: Bytes of the memory budget held for what was received on this stream.
        self.reserved = 0

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

    def reserve(self, size: int) -> bool:
        """Takes memory for what arrives on this stream; given back when the stream is over, or by ``give_back``."""
        if self.local_done or not self.connection.share.reserve(size):
            return False
        self.reserved += size
        return True

    def give_back(self, size: int) -> None:
        # When the stream is over, all of it has been given back already.
        size = min(size, self.reserved)
        self.reserved -= size
        self.connection.share.give_back(size)

    # Sending.

    @property
    def is_congested(self) -> bool:
        return self.unsent > _CONGESTED or self.connection.write_paused

    def send_headers(self, block: bytes, end: bool) -> None:
        self.begun = True
        if self.pending is not None:
            self.pending.append((frames.HEADERS, block, end))
            return
        self.connection.put_headers(self.id, block, end)
        if end:
            self.sent_end()

    def send_data(self, payload: Buffer, end: bool = False) -> None:
        """Sends as much as the windows allow; the rest waits its turn."""
        connection = self.connection
        length = len(payload)
        if self.pending is None and (
            not length
            or (
                length <= self.send_window
                and length <= connection.send_window
                and length <= connection.peer_max_frame
                # What has not been offered to the transport waits where it is counted.
                and (length <= SMALL or connection.out_size <= _MAX_OUT)
                and not connection.write_paused
            )
        ):
            self.send_window -= length
            connection.send_window -= length
            connection.put_data(self.id, payload, end)
            if end:
                self.sent_end()
            return
        if self.pending is None:
            self.pending = deque()
            self.progressed = connection.tick_now()
            self.sent_until = connection.progress.written + connection.out_size
        self.pending.append((frames.DATA, payload, end))
        self.unsent += length
        connection.waits(self, length)

    def sent_end(self) -> None:
        """END_STREAM went out."""
        self.local_done = True
        if self.remote_done:
            self.connection.streams.pop(self.id, None)
        else:
            self.connection.finished_early(self)
        if self.reserved:
            self.give_back(self.reserved)
