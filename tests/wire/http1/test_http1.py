"""HTTP/1.1, server side: any split and any order of answers, back-pressure, endings, and large bodies."""

from __future__ import annotations

from typing import Any

import pytest
from http1_messages import request, responses
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_fakes import ServerEnd

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.direct_receiver import LARGE_BODY, OTHER_READS
from isochrone.wire.exchange import Consumer, Exchange, Headers, Route
from isochrone.wire.http1.server import Http1Connection


class Delayed:
    """A server end whose answers the test gives."""

    def __init__(self, limits: WireLimits | None = None) -> None:
        self.end = ServerEnd(Http1Connection, None, limits)

    @property
    def exchanges(self) -> list[Any]:
        return self.end.route.exchanges


@given(
    bodies=st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 3)), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 800), max_size=10),
)
def test_any_split_of_pipelined_requests_gives_the_same_answers(
    bodies: list[tuple[bytes, int]], cuts: list[int]
) -> None:
    end = ServerEnd(Http1Connection)
    end.transport.feed_in_pieces(b"".join(request(body, chunks=chunks) for body, chunks in bodies), cuts)
    assert [body for _, _, body in responses(end.turn())] == [body for body, _ in bodies]
    assert end.route.bodies == [body for body, _ in bodies]


def test_a_split_at_every_byte() -> None:
    data = request(b"first") + request(b"second", chunks=2) + request(method=b"GET")
    for cut in range(len(data)):
        end = ServerEnd(Http1Connection)
        end.transport.feed_in_pieces(data, [cut])
        assert [body for _, _, body in responses(end.turn())] == [b"first", b"second", b""]
    end = ServerEnd(Http1Connection)
    end.transport.feed_in_pieces(data, range(len(data)))
    assert [body for _, _, body in responses(end.turn())] == [b"first", b"second", b""]


@given(order=st.permutations(range(5)), streamed=st.sets(st.integers(0, 4)))
def test_answers_keep_the_order_of_requests_whichever_is_ready_first(order: list[int], streamed: set[int]) -> None:
    delayed = Delayed()
    delayed.end.transport.feed(b"".join(request(b"%d" % index) for index in range(5)))
    for index in order:
        exchange = delayed.exchanges[index]
        if index in streamed:
            exchange.start(200, ((b"x-index", b"%d" % index),))
            exchange.write([b"%d" % index])
            exchange.end()
        else:
            exchange.respond(200, ((b"x-index", b"%d" % index),), [b"%d" % index])
    sent = delayed.end.turn()
    positions = [sent.index(b"x-index: %d" % index) for index in range(5)]
    assert positions == sorted(positions)
    assert sent.count(b"HTTP/1.1 200 OK") == 5
    assert sent.count(b"0\r\n\r\n") >= len(streamed)


def test_answers_of_one_callback_are_one_write() -> None:
    end = ServerEnd(Http1Connection)
    end.transport.feed(request(b"a") + request(b"b") + request(b"c"))
    assert end.transport.writes == 1


@settings(max_examples=30)
@given(extra=st.integers(-3, 3), cuts=st.lists(st.integers(0, 2 * LARGE_BODY), max_size=4), follow=st.booleans())
def test_a_large_body_is_the_same_as_a_small_one(extra: int, cuts: list[int], follow: bool) -> None:
    body = bytes(range(256)) * (2 * LARGE_BODY // 256) + b"x" * (extra + 3)
    data = request(body) + (request(b"next") if follow else b"")
    end = ServerEnd(Http1Connection)
    end.transport.feed_in_pieces(data, [*cuts, 60])
    assert end.route.bodies == [body, b"next"] if follow else [body]
    assert [answer for _, _, answer in responses(end.turn())] == end.route.bodies
    assert end.transport.protocol is end.connection.receiver
    assert end.transport.buffered_protocols == 1


def test_small_messages_after_a_large_body_give_the_transport_back() -> None:
    end = ServerEnd(Http1Connection)
    end.transport.feed(request(bytes(LARGE_BODY)))
    for number in range(OTHER_READS):
        assert end.transport.protocol is not end.connection
        end.transport.feed(request(b"%d" % number))
    assert end.transport.protocol is end.connection
    assert end.connection.receiver is None
    end.transport.feed(request(b"last"))
    end.transport.feed(request(bytes(LARGE_BODY)))
    assert end.transport.buffered_protocols == 2
    assert [len(body) for body in end.route.bodies] == [LARGE_BODY, *[1] * 10, *[2] * 6, 4, LARGE_BODY]


def test_a_large_body_arrives_in_its_own_buffer() -> None:
    end = ServerEnd(Http1Connection)
    data = request(bytes(4 * LARGE_BODY))
    end.transport.feed_in_pieces(data, [100, 2 * LARGE_BODY, 3 * LARGE_BODY])
    assert end.transport.buffered_protocols == 1
    assert isinstance(end.route.exchanges[0].body, memoryview)


def test_expect_gets_continue_once_and_before_the_body() -> None:
    end = ServerEnd(Http1Connection)
    head, body = request(b"tensor", extra=b"expect: 100-continue\r\n").split(b"\r\n\r\n")
    assert end.feed(head + b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert responses(end.feed(body))[0][2] == b"tensor"
    # A client that did not wait gets no second head.
    assert responses(end.feed(request(b"tensor", extra=b"expect: 100-continue\r\n")))[0][0] == 200


def test_expect_is_answered_with_the_refusal_when_the_body_is_too_large() -> None:
    end = ServerEnd(Http1Connection, limits=WireLimits(max_body_bytes=10))
    sent = end.feed(request(b"x" * 11, extra=b"expect: 100-continue\r\n").split(b"\r\n\r\n")[0] + b"\r\n\r\n")
    assert responses(sent)[0][0] == 413


def test_head_has_a_length_and_no_body() -> None:
    end = ServerEnd(Http1Connection, lambda exchange: exchange.respond(200, (), [b"12345"]))
    sent = end.feed(request(method=b"HEAD"))
    assert sent.endswith(b"content-length: 5\r\n\r\n")


def test_head_of_a_streamed_answer_has_no_body() -> None:
    end = ServerEnd(Http1Connection, stream_two)
    assert end.feed(request(method=b"HEAD")).endswith(b"transfer-encoding: chunked\r\n\r\n")


def stream_two(exchange: Exchange) -> None:
    exchange.start(200, ())
    exchange.write([b"one", b"and"])
    exchange.write([])
    exchange.write([b"two"])
    exchange.end()


def test_a_streamed_answer_is_chunked() -> None:
    end = ServerEnd(Http1Connection, stream_two)
    head, _, body = end.feed(request(b"x")).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert body == b"6\r\noneand\r\n3\r\ntwo\r\n0\r\n\r\n"
    assert not end.transport.closing


def test_http_1_0_gets_a_streamed_answer_until_the_connection_closes() -> None:
    end = ServerEnd(Http1Connection, stream_two)
    head, _, body = end.feed(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n").partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"oneandtwo"
    assert end.transport.closing


@pytest.mark.parametrize(
    ("head", "stays"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nhost: a\r\nConnection: Keep-Alive, Close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", False),
        (b"POST / HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nx", False),
    ],
)
def test_keep_alive(head: bytes, stays: bool) -> None:
    end = ServerEnd(Http1Connection)
    ((status, fields, _),) = responses(end.feed(head))
    assert status == 200
    assert (b"connection" not in fields) == stays
    assert end.transport.closing != stays


def test_nothing_is_read_after_a_request_that_closes() -> None:
    end = ServerEnd(Http1Connection)
    end.transport.feed(request(b"a", extra=b"connection: close\r\n") + request(b"b"))
    assert end.route.bodies == [b"a"]


def test_the_end_of_the_clients_bytes_ends_the_connection() -> None:
    delayed = Delayed()
    delayed.end.transport.feed(request(b"abc"))
    assert delayed.end.connection.eof_received() is False


class Owner:
    def __init__(self) -> None:
        self.told = 0

    def abandoned(self) -> None:
        self.told += 1


def test_a_lost_connection_tells_each_owner_once_and_later_answers_go_nowhere() -> None:
    delayed = Delayed()
    delayed.end.transport.feed(request(b"a") + request(b"b"))
    owners = [Owner(), Owner()]
    for exchange, owner in zip(delayed.exchanges, owners, strict=True):
        exchange.owner = owner
    delayed.end.connection.connection_lost(None)
    assert [owner.told for owner in owners] == [1, 1]
    assert not delayed.end.listener.connections
    first, second = delayed.exchanges
    assert not first.is_congested
    first.respond(200, (), [b"x"])
    second.start(200, ())
    second.write([b"x"])
    second.end()
    assert delayed.end.turn() == b""
    assert [owner.told for owner in owners] == [1, 1]


def test_a_slow_reader_stops_parsing_and_resumes_where_it_was() -> None:
    end = ServerEnd(Http1Connection)
    end.connection.pause_writing()
    assert not end.transport.reading
    end.connection.data_received(request(b"a") + request(b"b") + request(b"c")[:-1])
    assert end.route.bodies == []
    end.connection.resume_writing()
    assert end.transport.reading
    assert [body for _, _, body in responses(end.turn())] == [b"a", b"b"]
    assert [body for _, _, body in responses(end.feed(b"c"))] == [b"c"]


def test_a_producer_is_told_when_its_reader_has_caught_up() -> None:
    delayed = Delayed()
    delayed.end.transport.feed(request(b"a") + request(b"b"))
    first, second = delayed.exchanges
    told: list[str] = []
    assert not first.is_congested
    assert second.is_congested
    second.on_writable = lambda: told.append("second")
    delayed.end.connection.pause_writing()
    assert first.is_congested
    first.on_writable = lambda: told.append("first")
    delayed.end.connection.resume_writing()
    assert told == ["first"]
    first.respond(200, (), [])
    assert told == ["first", "second"]
    assert not second.is_congested


def test_only_the_last_of_pipelined_answers_says_close() -> None:
    """RFC 9112 §9.6: a client that reads the field may close, and would lose the answers behind it."""
    delayed = Delayed()
    last = request(b"c").replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
    delayed.end.transport.feed(request(b"a") + request(b"b") + last)
    for exchange in delayed.exchanges:
        exchange.respond(200, (), [b"ok"])
    answers = delayed.end.turn().split(b"HTTP/1.1 200")[1:]
    assert [b"connection: close" in answer for answer in answers] == [False, False, True]


def test_pipelining_pauses_at_its_limit_and_goes_on_at_half() -> None:
    delayed = Delayed(WireLimits(max_pipelined=4))
    delayed.end.transport.feed(b"".join(request(b"%d" % index) for index in range(10)))
    assert len(delayed.exchanges) == 4
    assert not delayed.end.transport.reading
    answered = 0
    while answered < 10:
        delayed.exchanges[answered].respond(200, (), [b"ok"])
        answered += 1
        delayed.end.listener.loop.run()
        assert len(delayed.exchanges) - answered <= 4
    assert delayed.end.route.bodies == [b"%d" % index for index in range(10)]
    assert delayed.end.transport.reading


def test_requests_held_back_by_pipelining_do_not_time_out() -> None:
    delayed = Delayed(WireLimits(max_pipelined=1))
    delayed.end.transport.feed(request(b"a") + request(b"b"))
    delayed.end.listener.tick = 1000
    delayed.end.connection.check_timeouts(1000)
    assert delayed.end.turn() == b""
    delayed.exchanges[0].respond(200, (), [b"a"])
    delayed.end.listener.loop.run()
    assert delayed.end.route.bodies == [b"a", b"b"]


class Gatherer:
    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.body += data

    def ended(self) -> None:
        self.exchange.respond(200, (), [self.body[::-1]])


class StreamingRoute(Route):
    streaming = True

    def open(self, exchange: Exchange) -> Consumer:
        return Gatherer(exchange)


def test_a_streaming_route_gets_the_whole_body() -> None:
    end = ServerEnd(Http1Connection, route=StreamingRoute())
    assert responses(end.feed(request(b"abc", chunks=3)))[0][2] == b"cba"


def test_a_memoised_head_is_the_same_as_a_fresh_parse() -> None:
    end = ServerEnd(Http1Connection)
    data = request(b"abc", extra=b"X-Thing: 1\r\ntraceparent: 00-ab\r\n")
    for _ in range(3):
        end.feed(data)
    first, second, third = (exchange.head for exchange in end.route.exchanges)
    assert third is second  # memoised at its second sight
    assert first is not second
    for head in (first, second):
        assert (head.method, head.target, head.content_length) == (b"POST", b"/v2", 3)
        assert head.headers == second.headers
        assert (head.keep_alive, head.chunked, head.expects_continue) == (True, False, False)
    assert first.get(b"x-thing") == b"1"
    assert first.get(b"absent") is None


def test_heads_that_never_come_again_are_not_kept() -> None:
    end = ServerEnd(Http1Connection)
    for index in range(50):
        end.feed(request(b"abc", extra=b"traceparent: 00-%032d\r\n" % index))
    assert not end.listener.heads._memo.heads


def test_shutting_down_closes_idle_connections_and_lets_busy_ones_finish() -> None:
    idle = ServerEnd(Http1Connection)
    idle.connection.shut_down()
    assert idle.transport.closing
    delayed = Delayed()
    delayed.end.transport.feed(request(b"a"))
    delayed.end.connection.shut_down()
    assert not delayed.end.transport.closing
    delayed.exchanges[0].respond(200, (), [b"done"])
    assert responses(delayed.end.turn())[0][1][b"connection"] == b"close"
    assert delayed.end.transport.closing


def test_answers_repeat_their_head_bytes() -> None:
    headers: Headers = ((b"x-same", b"1"),)
    end = ServerEnd(Http1Connection, lambda exchange: exchange.respond(404, headers, [b"no"]))
    assert end.feed(request(b"a")) == end.feed(request(b"b"))
