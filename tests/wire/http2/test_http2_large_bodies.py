"""HTTP/2 bodies in large frames, received directly into their buffers: the same bytes, windows and errors as in small
pieces."""

from __future__ import annotations

import random
from typing import Any

import pytest
from http2_frames import FIELDS, advance, exchange_of, goaway_of, headers, opened, parse, statuses
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_fakes import ServerEnd

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.direct_receiver import LARGE_BODY, OTHER_READS, SCRATCH_BYTES, SMALL_REST
from isochrone.wire.exchange import Exchange, Route
from isochrone.wire.http2 import frames
from isochrone.wire.http2.frames import DATA, END_STREAM, PADDED, RST_STREAM, WINDOW_UPDATE, frame
from isochrone.wire.http2.server import Http2ServerConnection

GRPC = [*FIELDS, (b"content-type", b"application/grpc"), (b"te", b"trailers")]
#: Sizes around everything that is decided by size.
SIZES = st.one_of(
    st.sampled_from([0, 1, SMALL_REST, SCRATCH_BYTES, LARGE_BODY]).flatmap(
        lambda at: st.integers(max(0, at - 20), at + 20)
    ),
    st.integers(0, 5 * LARGE_BODY),
)


def message(size: int, seed: int = 0) -> bytes:
    """A gRPC message whose every part differs from every other."""
    return b"\0" + size.to_bytes(4, "big") + random.Random(seed).randbytes(size)


def data(stream: int, payload: bytes, *, end: bool = False, padding: int = -1) -> bytes:
    flags = END_STREAM if end else 0
    if padding >= 0:
        return frame(DATA, flags | PADDED, stream, bytes([padding]) + payload + bytes(padding))
    return frame(DATA, flags, stream, payload)


def is_direct(end: ServerEnd) -> bool:
    assert (end.connection.receiver is None) == (end.transport.protocol is end.connection)
    return end.connection.receiver is not None


class Request:
    """One request and how it is sent."""

    def __init__(self, drawn: st.DataObject, number: int) -> None:
        size = drawn.draw(SIZES)
        self.stream = 2 * number + 1
        self.body = message(size, number)
        announcing = drawn.draw(st.sampled_from(("grpc", "length", "nothing", "too little", "too much")))
        fields = FIELDS
        if announcing == "length":
            fields = [*FIELDS, (b"content-length", b"%d" % len(self.body))]
        elif announcing != "nothing":
            fields = GRPC
        if announcing == "too little":
            self.body = message(size // 2, number)[:5] + self.body[5:]
        elif announcing == "too much":
            self.body = message(size * 2, number)[:5] + self.body[5:]
        cuts = sorted(drawn.draw(st.lists(st.integers(0, len(self.body)), max_size=3)))
        pieces = [self.body[a:b] for a, b in zip([0, *cuts], [*cuts, len(self.body)], strict=True)]
        #: Its frames in order.
        self.frames = [headers(self.stream, fields)]
        for index, piece in enumerate(pieces):
            padding = drawn.draw(st.sampled_from([-1, -1, -1, 0, 200]))
            self.frames.append(data(self.stream, piece, end=index == len(pieces) - 1, padding=padding))


@settings(max_examples=100)
@given(drawn=st.data(), count=st.integers(1, 4), small=st.integers(0, 2 * OTHER_READS))
def test_bodies_of_any_sizes_in_any_frames_and_reads(drawn: st.DataObject, count: int, small: int) -> None:
    end = opened()
    requests = [Request(drawn, number) for number in range(count)]
    sent: list[bytes] = []
    waiting = [list(request.frames) for request in requests]
    # HEADERS in the order of the streams; after that frames of all streams in any order.
    sent += [of_one.pop(0) for of_one in waiting]
    while any(waiting):
        some = [of_one for of_one in waiting if of_one]
        sent.append(some[drawn.draw(st.integers(0, len(some) - 1))].pop(0))
    last = 2 * count + 1
    for number in range(small):
        sent += [headers(last + 2 * number, GRPC), data(last + 2 * number, message(10, number), end=True)]
    whole = b"".join(sent)
    end.transport.feed_in_pieces(whole, drawn.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    out = end.turn()
    assert goaway_of(out) is None
    found = {exchange.id: body for exchange, body in zip(end.route.exchanges, end.route.bodies, strict=True)}  # type: ignore[attr-defined]
    assert found == {
        **{request.stream: request.body for request in requests},
        **{last + 2 * number: message(10, number) for number in range(small)},
    }
    # Every byte of DATA frames is charged to the connection's window once.
    received = sum(len(payload) for kind, _, _, payload in parse(whole) if kind == DATA)
    returned = sum(
        int.from_bytes(payload, "big") for kind, _, on, payload in parse(out) if kind == WINDOW_UPDATE and on == 0
    )
    assert returned + end.connection.unacknowledged == received
    # The same streams get the same windows back.
    for exchange in list(end.route.exchanges):
        exchange.respond(200, (), [])
    end.turn()
    assert end.connection.streams == {}
    assert end.listener.budget.held == 0


def test_a_large_frame_is_received_into_its_own_buffer_and_those_that_follow_too() -> None:
    end = opened()
    bodies = [message(3 * LARGE_BODY, number) for number in range(3)]
    requests = [headers(2 * n + 1, GRPC) + data(2 * n + 1, body, end=True) for n, body in enumerate(bodies)]
    end.transport.feed_in_pieces(b"".join(requests), [100])
    assert end.route.bodies == bodies
    assert end.transport.buffered_protocols == 1
    assert is_direct(end)
    assert all(isinstance(exchange.body, memoryview) for exchange in end.route.exchanges)
    assert [len(exchange.body) for exchange in end.route.exchanges] == [len(body) for body in bodies]


def test_small_requests_give_the_transport_back() -> None:
    end = opened()
    end.transport.feed(headers(1, GRPC) + data(1, message(2 * LARGE_BODY), end=True))
    for number in range(OTHER_READS):
        assert is_direct(end)
        end.transport.feed(headers(3 + 2 * number, GRPC) + data(3 + 2 * number, message(10), end=True))
    assert not is_direct(end)
    assert len(end.route.bodies) == OTHER_READS + 1


def test_frames_below_the_limit_and_streams_that_are_read_as_they_come_stay_with_the_connection() -> None:
    end = opened()
    end.transport.feed_in_pieces(headers(1, GRPC) + data(1, message(LARGE_BODY - 6), end=True), [1000])
    assert not is_direct(end)
    assert len(end.route.bodies) == 1
    pieces: list[bytes] = []

    class Streaming(Route):
        streaming = True

        def open(self, exchange: Exchange) -> Any:
            return self

        def data_received(self, payload: bytes) -> None:
            pieces.append(payload)

        def ended(self) -> None: ...

    end = ServerEnd(Http2ServerConnection, route=Streaming())
    body = message(4 * LARGE_BODY)
    end.feed(frames.PREFACE + frames.settings_frame({}))
    end.transport.feed_in_pieces(headers(1, GRPC) + data(1, body, end=True), [1000, 100_000])
    assert not is_direct(end)
    assert b"".join(pieces) == body


def begun(limits: WireLimits | None = None) -> tuple[ServerEnd, bytes]:
    """A body of which half has been received directly, and the rest of its frame."""
    end = opened(limits)
    request = headers(1, GRPC) + data(1, message(4 * LARGE_BODY), end=True)
    end.transport.feed_in_pieces(request[: 2 * LARGE_BODY], [200])
    assert is_direct(end)
    return end, request[2 * LARGE_BODY :]


NEXT = headers(3, GRPC) + data(3, message(3 * LARGE_BODY, 3), end=True)


@pytest.mark.parametrize("cut", [0, 1, LARGE_BODY])
def test_the_rest_of_a_frame_is_dropped_once_its_stream_is_reset(cut: int) -> None:
    end, rest = begun()
    end.connection.reset(end.connection.streams[1], frames.CANCEL)
    assert end.listener.budget.held == 0
    end.transport.feed_in_pieces(rest + NEXT, [cut])
    assert end.route.bodies == [message(3 * LARGE_BODY, 3)]
    assert [(kind, stream) for kind, _, stream, _ in parse(end.turn())] == [(RST_STREAM, 1)]


def test_a_body_that_stops_arriving_is_refused_and_the_rest_of_its_frame_dropped() -> None:
    end, rest = begun(WireLimits(body_timeout=5))
    advance(end, 1)  # notes the progress
    assert advance(end, 5) == b""
    assert statuses(advance(end, 1)) == [b"200"]  # the gRPC status is a trailer
    end.transport.feed(rest + NEXT)
    assert end.route.bodies == [message(3 * LARGE_BODY, 3)]


def test_a_body_that_arrives_slowly_is_not_refused() -> None:
    end, rest = begun(WireLimits(body_timeout=5))
    for position in range(0, len(rest), 20_000):
        end.transport.feed(rest[position : position + 20_000])
        assert advance(end, 4) == b""
    assert end.route.bodies == [message(4 * LARGE_BODY)]


def test_a_connection_lost_in_the_middle_gives_its_memory_back() -> None:
    end, _ = begun()
    assert end.listener.budget.held > 4 * LARGE_BODY
    end.transport.protocol.connection_lost(ConnectionResetError())
    assert end.listener.budget.held == 0
    assert end.connection.closed
    assert end.route.exchanges == []
    assert end.connection not in end.listener.connections


def test_shutting_down_in_the_middle_finishes_the_request() -> None:
    end, rest = begun()
    end.connection.shut_down()
    assert goaway_of(end.turn()) == (frames.NO_ERROR, "server is stopping")
    end.transport.feed(rest + NEXT)
    assert end.route.bodies == [message(4 * LARGE_BODY)]
    exchange_of(end).respond(200, (), [])
    assert statuses(end.turn()) == [b"200"]
    assert end.transport.closing


def test_more_than_the_window_is_a_connection_error() -> None:
    end = opened(WireLimits(stream_window=2 * LARGE_BODY))
    end.feed(frames.SETTINGS_ACK)
    request = headers(1, GRPC) + data(1, message(4 * LARGE_BODY), end=True)
    end.transport.feed(request[:200])
    assert is_direct(end)
    out = end.feed(request[200:] + NEXT)
    assert goaway_of(out) == (frames.FLOW_CONTROL_ERROR, "stream 1 sent more than its window")
    assert end.transport.closing
    assert end.route.bodies == []


def test_writing_is_paused_and_resumed_through_the_receiver() -> None:
    end, rest = begun()
    end.transport.protocol.pause_writing()
    assert end.connection.write_paused
    end.transport.feed(rest)
    exchange_of(end).respond(200, (), [bytes(100_000)])
    assert end.connection.unsent
    end.transport.protocol.resume_writing()
    assert not end.connection.write_paused
    assert end.transport.protocol.eof_received() is False
