"""One request on an HTTP/2 connection, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from isochrone.clock import now_ns
from isochrone.wire.bodies.budget import SMALL
from isochrone.wire.connection_host import ConnectionHost
from isochrone.wire.exchange import Buffer, Consumer, Head, Headers, Owner
from isochrone.wire.head_memo import remember_second
from isochrone.wire.http2 import frames
from isochrone.wire.http2.connection import Http2Connection
from isochrone.wire.http2.hpack import Encoder, encode_literal
from isochrone.wire.http2.request_body import GRPC_PREFIX, RequestBody, announced_size
from isochrone.wire.http2.stream import Stream

#: HTTP status → gRPC status of errors that the wire itself answers with.
_GRPC_STATUSES = {408: b"4", 413: b"8", 431: b"8", 503: b"14"}

_encode = Encoder().encode
#: (status, headers) → encoded block. The encoder keeps no state, so a block is valid on any connection.
_response_blocks: dict[tuple[int, Headers], bytes] = {}
_seen_blocks: set[int] = set()
_MAX_MEMOISED_BLOCKS = 1024


def response_block(status: int, headers: Headers) -> bytes:
    """The header block of a response, memoised. A header of every HTTP/2 response is added here."""
    key = (status, headers)
    block = _response_blocks.get(key)
    if block is None:
        block = _encode([(b":status", b"%d" % status), *headers])
        remember_second(key, block, _response_blocks, _seen_blocks, _MAX_MEMOISED_BLOCKS)
    return block


class AcceptedConnection(Http2Connection):
    """The part of a server-side connection that its streams use."""

    listener: ConnectionHost
    #: URIs and DNS names of the client's certificate; (): it has shown none.
    peer_identity: tuple[str, ...]


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

    def __init__(self, connection: AcceptedConnection, stream_id: int, head: Head) -> None:
        # Stream's fields are set here, without a call to its __init__: this runs for every request.
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
        #: Tick at which the stream was opened or its body last made progress, and the bytes received by then.
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
            return  # rejected before the body was complete
        before = self.received
        self.received = received = before + len(payload)
        limits = self.connection.limits
        if received > limits.max_body_bytes:
            self.reject(413, f"the request's body is larger than max_body_bytes ({limits.max_body_bytes})")
        elif before == 0:
            self._begin_body(payload)
        elif self.pieces is None and before < GRPC_PREFIX and self.head.is_grpc:
            # Only now the length of the message is known.
            self._begin_body(bytes(self.body) + payload)
        else:
            if self.pieces is None:
                self.pieces = RequestBody(self)
                self.pieces.add(bytes(self.body))
            if not self.pieces.add(payload):
                self.reject_for_memory()

    @property
    def receives_directly(self) -> bool:
        return self.consumer is None and not self.begun

    def space(self, size: int) -> memoryview | None:
        return self.pieces.space(size) if self.pieces is not None and self.consumer is None else None

    def filled(self, count: int) -> None:
        self.received += count
        cast(RequestBody, self.pieces).fill(count)

    def _begin_body(self, payload: bytes) -> None:
        size = announced_size(self.head.content_length, self.head.is_grpc, payload)
        if size <= len(payload) or self.remote_done:
            self.body = payload
            if len(payload) > SMALL and not self.reserve(len(payload)):
                self.reject_for_memory()
            return
        limit = self.connection.limits.max_body_bytes
        if size > limit:
            self.reject(413, f"the request's body is larger than max_body_bytes ({limit})")
            return
        self.pieces = RequestBody(self)
        if not self.pieces.expect(size, payload):
            self.reject_for_memory()

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
        # Behind the block, since the length is what differs between answers.
        block = response_block(status, headers) + encode_literal(b"content-length", b"%d" % length)
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
        """Send headers, one DATA frame and trailers together, if they fit the windows: a unary gRPC answer.

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

    def reject(self, status: int, message: str) -> None:
        """Answer with an error before the request is complete; its remaining bytes are dropped."""
        self.pieces = None
        if self.head.is_grpc:
            # gRPC clients treat any HTTP status but 200 as a proxy's error; gRPC statuses are trailers.
            code = _GRPC_STATUSES.get(status, b"13")
            fields = [(b"grpc-status", code), (b"grpc-message", message.encode())]
            self.end_with_trailers(_encode([(b":status", b"200"), (b"content-type", b"application/grpc"), *fields]))
            return
        body, headers = cast(AcceptedConnection, self.connection).listener.error_body(message, status, self.head)
        self.respond(status, headers, [body])

    def reject_for_memory(self) -> None:
        """Reject a request for which there is no memory."""
        self.reject(503, self.no_memory())

    def shed(self) -> None:
        """Reject a request that has no answer yet, although it may be running: there is no memory for an answer."""
        owner, self.owner = self.owner, None
        self.body = b""
        self.reject_for_memory()
        # The error may wait for window. A later answer is dropped.
        self.local_done = True
        if self.reserved:
            self.give_back(self.reserved)
        if owner is not None:
            owner.abandoned()

    def no_memory(self) -> str:
        return cast(AcceptedConnection, self.connection).listener.no_memory()
