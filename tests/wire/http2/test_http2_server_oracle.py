"""HTTP/2, server side, with the ``h2`` package as client: whatever the interleaving, bodies and answers are intact."""

from __future__ import annotations

from typing import Any

import hpack
from h2_peers import H2Peer, Message, Sending, feed_pieces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_fakes import ServerEnd

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Exchange
from isochrone.wire.http2.hpack import Encoder
from isochrone.wire.http2.server import Http2ServerConnection

encode = Encoder().encode
PREFIX = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
PATTERN = bytes(index * 7 % 251 for index in range(90_000))
SUFFIX = encode([(b"grpc-status", b"0")])


def answer(exchange: Exchange) -> None:
    """The body again, in the way the path asks for."""
    stream: Any = exchange
    body = bytes(exchange.body)
    kind = exchange.head.target
    if kind == b"/respond":
        stream.respond(200, ((b"x-kind", b"respond"),), [body[:7], body[7:]])
    elif kind == b"/stream":
        stream.start(200, ())
        for start in range(0, len(body), 1000):
            stream.write([body[start : start + 1000]])
        stream.end()
    elif kind == b"/unary":
        stream.respond_unary(PREFIX, body, len(body), SUFFIX)
    else:
        stream.send_headers(PREFIX, False)
        stream.send_data(body)
        stream.end_with_trailers(SUFFIX)


sizes = st.one_of(st.integers(0, 50), st.integers(0, 5000), st.sampled_from([16_384, 16_385, 65_535, 65_536, 90_000]))
messages = st.builds(
    lambda path, size, padding, priority, trailers, reset: Message(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"test"),
            (b"te", b"trailers"),
            (b"x-size", b"%d" % size),
        ],
        PATTERN[:size],
        [(b"x-checksum", b"1")] if trailers else [],
        padding,
        priority,
        size // 2 if reset else None,
    ),
    st.sampled_from([b"/respond", b"/stream", b"/unary", b"/frames"]),
    sizes,
    st.one_of(st.none(), st.integers(0, 255)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([False, False, False, True]),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    requests=st.lists(messages, min_size=1, max_size=6),
    order=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20_000)), min_size=1, max_size=40),
    inward=st.lists(st.sampled_from([1, 2, 9, 10, 50, 1000, 16_393, 100_000]), min_size=1, max_size=5),
    outward=st.lists(st.sampled_from([1, 9, 100, 5000, 100_000]), min_size=1, max_size=3),
    window=st.sampled_from([1, 100, 5000, 65_535, 1_000_000]),
    frame=st.sampled_from([16_384, 20_000, 1_000_000]),
    table=st.sampled_from([0, 100, 4096, 8192]),
    limits=st.sampled_from([WireLimits(), WireLimits(stream_window=20_000, connection_window=70_000)]),
)
def test_bodies_and_answers_arrive_intact(
    requests: list[Message],
    order: list[tuple[int, int]],
    inward: list[int],
    outward: list[int],
    window: int,
    frame: int,
    table: int,
    limits: WireLimits,
) -> None:
    if window < 5000:
        # One byte at a time is a lot of frames: keep those examples short, and one-byte pieces to short ones.
        for message in requests:
            message.body = message.body[:300]
    total = sum(len(message.body) for message in requests)
    order = [(which, max(size, total // 100)) for which, size in order]
    if total > 5_000:
        inward = [max(size, 50) for size in inward]
        outward = [max(size, 100) for size in outward]
    end = ServerEnd(Http2ServerConnection, answer, limits)
    peer = H2Peer(client=True, settings={1: table, 4: window, 5: frame})
    sending = [
        Sending(peer.connection, 2 * index + 1, message, is_request=True) for index, message in enumerate(requests)
    ]
    opened = 0

    def exchange_bytes() -> bool:
        data = peer.take()
        feed_pieces(end.transport.feed, data, inward)
        reply = end.turn()
        feed_pieces(peer.receive, reply, outward)
        return bool(data or reply)

    exchange_bytes()
    turn = 0
    while not all(one.done for one in sending):
        assert turn < 20_000, "no progress"
        which, size = order[turn % len(order)]
        turn += 1
        # Stream numbers go up in the order streams are opened.
        if opened < len(sending) and which >= opened:
            sending[opened].step(size)
            opened += 1
        else:
            sending[which % max(1, opened)].step(size)
        if turn % 3 == 0 or turn > 10 * len(order):
            for one in sending[:opened]:
                one.step(size)
            exchange_bytes()
            if opened < len(sending) and turn > 2 * len(order):
                sending[opened].step(size)
                opened += 1
    while exchange_bytes():
        end.connection.flood.forget(end.connection.highest_stream)  # a second passes
    assert peer.terminated is None
    for index, message in enumerate(requests):
        stream_id = 2 * index + 1
        if message.reset_after is not None:
            continue
        assert stream_id in peer.ended, f"stream {stream_id} was not answered"
        assert bytes(peer.bodies[stream_id]) == message.body
        if message.fields[2][1] in (b"/unary", b"/frames"):
            assert peer.trailers[stream_id] == [(b"grpc-status", b"0")]
    assert peer.resets == {}
    assert end.connection.streams == {}
    assert not end.connection.ready
    assert end.connection.unsent == 0


def test_an_early_answer_is_followed_by_a_reset_without_error() -> None:
    end = ServerEnd(Http2ServerConnection, answer, WireLimits(max_body_bytes=1000))
    peer = H2Peer(client=True)
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/respond"), (b":authority", b"a")]
    peer.connection.send_headers(1, fields)
    for _ in range(3):
        peer.connection.send_data(1, bytes(500))
    peer.receive(end.feed(peer.take()))
    assert dict(peer.heads[1])[b":status"] == b"413"
    assert b"max_body_bytes (1000)" in peer.bodies[1]
    assert peer.resets == {1: 0}
    assert end.route.exchanges == []
    assert end.connection.streams == {}


def test_the_same_block_is_memoised_at_its_second_sight() -> None:
    end = ServerEnd(Http2ServerConnection, answer)
    peer = H2Peer(client=True)
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/unary"), (b":authority", b"a")]
    for stream_id in range(1, 11, 2):
        peer.connection.send_headers(stream_id, fields)
        peer.connection.send_data(stream_id, b"%d" % stream_id, end_stream=True)
        peer.receive(end.feed(peer.take()))
    heads = [exchange.head for exchange in end.route.exchanges]
    assert heads[3] is heads[4]
    assert heads[1] is not heads[0]
    for head in heads:
        assert (head.method, head.target, head.headers) == (b"POST", b"/unary", ())
    assert [bytes(peer.bodies[stream_id]) for stream_id in range(1, 11, 2)] == [b"1", b"3", b"5", b"7", b"9"]


def test_blocks_that_never_come_again_are_not_kept() -> None:
    end = ServerEnd(Http2ServerConnection, answer)
    peer = H2Peer(client=True)
    for index in range(40):
        stream_id = 2 * index + 1
        fields: Any = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/unary"), (b":authority", b"a")]
        fields.append(hpack.NeverIndexedHeaderTuple(b"traceparent", b"00-%032d" % index))
        peer.connection.send_headers(stream_id, fields, end_stream=True)
        peer.receive(end.feed(peer.take()))
    assert end.connection.heads == {}
    assert len(end.route.exchanges) == 40


def test_a_change_of_the_table_forgets_memoised_heads() -> None:
    end = ServerEnd(Http2ServerConnection, answer)
    peer = H2Peer(client=True)
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/unary"), (b":authority", b"a")]
    kinds = [b"one", b"one", b"one", b"two", b"one", b"two", b"one", b"two"]
    for index, kind in enumerate(kinds):
        peer.connection.send_headers(2 * index + 1, [*fields, (b"x-kind", kind)], end_stream=True)
        peer.receive(end.feed(peer.take()))
    assert [exchange.head.get(b"x-kind") for exchange in end.route.exchanges] == kinds


def test_a_small_header_table_is_acknowledged_in_the_next_block_once() -> None:
    for path in (b"/unary", b"/respond", b"/frames"):
        end = ServerEnd(Http2ServerConnection, answer)
        peer = H2Peer(client=True, settings={1: 0})
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"a")]
        for stream_id in (1, 3):
            peer.connection.send_headers(stream_id, fields)
            peer.connection.send_data(stream_id, b"body", end_stream=True)
        # h2 raises when the update that RFC 7541 §4.2 asks for is missing.
        sent = end.feed(peer.take())
        peer.receive(sent)
        assert peer.bodies == {1: b"body", 3: b"body"}
        assert end.connection.table_update_sent
        assert not end.connection.table_update_due
