"""Receives large bodies directly into their buffers, for connections of HTTP/1.1 and HTTP/2, servers and clients.

A connection that receives a large body is replaced by a ``DirectReceiver`` as the transport's protocol. The kernel then
writes a body's bytes where they stay; otherwise uvloop receives up to 256 KiB in its own buffer and copies them into
``bytes``, and the connection copies those into the body's buffer. The receiver remains while large bodies follow each
other, since the first read of a connection of its own would bring most of a body the old way: it reads what stands
between them, heads and small messages, into a scratch buffer and passes it on. So at most ``SCRATCH_BYTES`` of a body
are copied, and a change of protocols, which costs two system calls, is rare. Never parses bytes.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

#: Smallest body, and smallest frame of one, that makes a connection receive directly. A body of 80 kB that is alone
#: costs up to a third more this way (two reads instead of one), one of 150 kB a tenth more, one of 300 kB a third less.
LARGE_BODY = 128 * 1024
#: Bytes of a read that is not direct.
SCRATCH_BYTES = 16 * 1024
#: A rest of a body that is smaller is read together with what follows it.
SMALL_REST = 4 * 1024
#: Reads without a direct one, after which the connection is the transport's protocol again.
OTHER_READS = 16


#: ``scratch``: the scratch buffer of a thread, whose event loop passes on every read before the next one.
_of_thread = threading.local()


class DirectOwner(Protocol):
    """A connection that receives large bodies directly."""

    transport: asyncio.Transport
    #: The transport's protocol while large bodies arrive.
    receiver: DirectReceiver | None

    def body_space(self) -> memoryview | None:
        """The part of a body's buffer that the next bytes belong to; None: they are to be parsed."""
        ...

    def body_filled(self, space: memoryview, count: int) -> None:
        """``count`` bytes were written to ``space``, the last ``body_space``."""
        ...

    def receive_now(self, data: bytes) -> None:
        """Process bytes before the next ones are read: they decide where those belong."""
        ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def eof_received(self) -> bool: ...

    def connection_lost(self, error: Exception | None) -> None: ...


class DirectReceiver(asyncio.BufferedProtocol):
    """Takes over the transport on construction, and gives it back when no large bodies follow."""

    __slots__ = ("_other_reads", "_owner", "_scratch", "_space")

    def __init__(self, owner: DirectOwner) -> None:
        self._owner = owner
        self._scratch = _scratch()
        #: The buffer of the current read, if it is a body's.
        self._space: memoryview | None = None
        #: Reads since the last direct one.
        self._other_reads = 0
        _hand_over(owner.transport, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._space = space = self._owner.body_space()
        return self._scratch if space is None else space

    def buffer_updated(self, count: int) -> None:
        owner = self._owner
        space, self._space = self._space, None
        if space is not None:
            self._other_reads = 0
            owner.body_filled(space, count)
            return
        self._other_reads += 1
        owner.receive_now(bytes(self._scratch[:count]))
        if self._other_reads >= OTHER_READS and owner.receiver is self:
            owner.receiver = None
            _hand_over(owner.transport, owner)  # type: ignore[arg-type]

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()

    def eof_received(self) -> bool:
        return self._owner.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.connection_lost(error)


def may_receive_directly(transport: asyncio.Transport) -> bool:
    """Not over TLS: its transport keeps what a small buffer has no room for, and drops it if the peer closes then."""
    return transport.get_extra_info("sslcontext") is None


def _scratch() -> memoryview:
    scratch: memoryview | None = getattr(_of_thread, "scratch", None)
    if scratch is None:
        scratch = _of_thread.scratch = memoryview(bytearray(SCRATCH_BYTES))
    return scratch


def _hand_over(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    # uvloop selects its read callback when reading starts, so a change between protocol kinds needs a pause.
    reading = transport.is_reading()
    if reading:
        transport.pause_reading()
    transport.set_protocol(protocol)
    if reading:
        transport.resume_reading()
