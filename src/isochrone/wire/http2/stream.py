"""One HTTP/2 stream: flow control in both directions, and frames that wait for window.

The server and client sides subclass ``Stream``; ``sending.FrameSender`` sends the queued frames.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from isochrone.wire.bodies.budget import SMALL
from isochrone.wire.exchange import Buffer
from isochrone.wire.http2 import frames

if TYPE_CHECKING:
    from isochrone.wire.http2.connection import Http2Connection

#: Unsent bytes of one stream above which its producer should wait.
_CONGESTED = 256 * 1024
#: Queued bytes of a connection above which large frames wait for the next write.
_MAX_OUT = 256 * 1024


class Stream:
    """One stream's flow control and unsent frames."""

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

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        self.connection = connection
        self.id = stream_id
        #: Bytes that the peer allows us to send on this stream.
        self.send_window = connection.initial_send_window
        #: Bytes received and not yet returned as window.
        self.unacknowledged = 0
        #: END_STREAM was received; END_STREAM was sent or is queued.
        self.remote_done = False
        self.local_done = False
        #: Our header block was sent or is queued.
        self.begun = False
        #: Frames that wait for window, in order: (kind, payload, end). The first is always DATA with a payload, since
        #: nothing else needs a window. None on the fast path.
        self.pending: deque[tuple[int, Buffer, bool]] | None = None
        #: Bytes of ``pending``.
        self.unsent = 0
        #: The stream is in the connection's ``ready`` queue.
        self.queued = False
        #: The receiver holds the window: the peer gets none back until it is released.
        self.held = False
        #: Tick at which a part of ``pending`` was last sent, acknowledged, or queued.
        self.progressed = 0
        #: Bytes that the connection had written by then; undefined without ``pending``.
        self.sent_until = 0
        #: Bytes of the memory budget held for what was received on this stream.
        self.reserved = 0

    # Overridden by the sides.

    def data(self, payload: bytes) -> None:
        """A piece of the body was received, without padding."""

    @property
    def receives_directly(self) -> bool:
        """Whether ``space`` may offer a buffer for large frames."""
        return False

    def space(self, size: int) -> memoryview | None:
        """The buffer for the next ``size`` bytes of the body; None: they are to be passed to ``data``.

        It may be longer, for bytes that follow the body's: those of the next frame.
        """
        return None

    def filled(self, count: int) -> None:
        """The first ``count`` bytes of ``space`` were received."""

    def ended(self) -> None:
        """END_STREAM was received."""

    def lost(self, code: int) -> None:
        """The stream was reset, or its connection was lost, before its end."""

    def writable(self) -> None:
        """All queued bytes were sent."""

    # Receiving.

    def hold_window(self) -> None:
        self.held = True

    def release_window(self) -> None:
        if self.held:
            self.held = False
            if self.unacknowledged and not self.remote_done:
                self.connection.acknowledge(self)

    def reserve(self, size: int) -> bool:
        """Reserve memory for received bytes; it is given back at the end of the stream, or by ``give_back``."""
        if self.local_done or not self.connection.share.reserve(size):
            return False
        self.reserved += size
        return True

    def give_back(self, size: int) -> None:
        # After the end of the stream, all of it has been given back already.
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
        """Send as much as the windows allow; the rest is queued."""
        connection = self.connection
        length = len(payload)
        if self.pending is None and (
            not length
            or (
                length <= self.send_window
                and length <= connection.send_window
                and length <= connection.peer_max_frame
                # Large frames that cannot be written now are queued in ``pending``, where they are counted.
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
        connection.count_queued(self, length)

    def sent_end(self) -> None:
        """END_STREAM was sent."""
        self.local_done = True
        if self.remote_done:
            self.connection.streams.pop(self.id, None)
        else:
            self.connection.finished_early(self)
        if self.reserved:
            self.give_back(self.reserved)
