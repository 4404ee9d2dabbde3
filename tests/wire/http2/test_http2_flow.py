"""HTTP/2, server side: windows, slow readers, producers, timeouts, cancellation and shutting down."""

from __future__ import annotations

from typing import Any

import pytest
from http2_frames import FIELDS, advance, data_of, encode, exchange_of, goaway_of, headers, opened, parse, statuses
from wire_fakes import ServerEnd

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Consumer, Exchange, Route
from isochrone.wire.http2 import frames
from isochrone.wire.http2.frames import DATA, HEADERS, RST_STREAM, frame, settings_frame, window_update
from isochrone.wire.http2.hpack import Decoder
from isochrone.wire.http2.server import Http2ServerConnection

PREFIX = encode([(b":status", b"200")])
SUFFIX = encode([(b"grpc-status", b"0")])


def test_answers_wait_for_the_window_and_go_on_with_it() -> None:
    end = opened()
    end.feed(settings_frame({4: 10}) + headers(1, end=True) + headers(3, end=True))
    first, second = exchange_of(end), exchange_of(end, 1)
    first.respond(200, (), [b"0123456789abcdef"])
    second.respond_unary(PREFIX, b"0123456789abcdef", 16, SUFFIX)
    sent = end.turn()
    assert data_of(sent) == b"0123456789"
    assert data_of(sent, 3) == b"0123456789"
    assert end.connection.unsent == 12
    sent = end.feed(window_update(3, 100))
    assert data_of(sent, 3) == b"abcdef"
    assert parse(sent)[-1][:3] == (HEADERS, 5, 3)
    assert data_of(end.feed(settings_frame({4: 13}))) == b"abc"
    assert data_of(end.feed(settings_frame({4: 1000}))) == b"def"
    assert end.connection.streams == {}
    assert end.connection.unsent == 0


def test_a_window_may_become_negative() -> None:
    end = opened()
    end.feed(settings_frame({4: 10}) + headers(1, end=True))
    exchange = exchange_of(end)
    exchange.start(200, ())
    exchange.write([b"01234567"])
    end.turn()
    end.feed(settings_frame({4: 3}))  # the window is -5 now (RFC 9113 §6.9.2)
    exchange.write([b"abc"])
    assert data_of(end.feed(window_update(1, 5))) == b""
    assert data_of(end.feed(window_update(1, 2))) == b"ab"


def test_the_connections_window_is_shared_fairly() -> None:
    end = opened()
    end.feed(settings_frame({4: 1 << 20}) + headers(1, end=True) + headers(3, end=True))
    for index in (0, 1):
        exchange_of(end, index).respond(200, (), [bytes(200_000)])
    sent = end.turn()
    assert len(data_of(sent)) + len(data_of(sent, 3)) == 65_535
    assert len(data_of(sent)) > 0
    sent = end.feed(window_update(0, 80_000))
    assert abs(len(data_of(sent)) - len(data_of(sent, 3))) <= 16_384


def test_writes_of_one_turn_are_one_write() -> None:
    end = opened()
    end.feed(b"".join(headers(number, end=True) for number in range(1, 21, 2)))
    before = end.transport.writes
    for exchange in end.route.exchanges:
        exchange.respond(200, (), [b"answer"])
    end.turn()
    assert end.transport.writes == before + 1


def test_a_producer_that_stopped_for_the_connection_is_called_again() -> None:
    end = opened()
    end.feed(headers(1, end=True))
    exchange = exchange_of(end)
    exchange.start(200, ())
    exchange.write([b"one"])
    end.turn()
    told: list[str] = []
    end.connection.pause_writing()
    assert exchange.is_congested
    exchange.on_writable = lambda: told.append("go")
    end.connection.resume_writing()
    assert told == ["go"]
    assert not exchange.is_congested


def test_producers_called_within_pumping_may_write_at_once() -> None:
    end = opened()
    end.feed(settings_frame({4: 1 << 20}) + headers(1, end=True) + headers(3, end=True) + headers(5, end=True))
    exchanges = [exchange_of(end, index) for index in range(3)]
    end.connection.pause_writing()
    for exchange in exchanges:
        exchange.start(200, ())
        exchange.write([b"first"])
    for exchange in exchanges:
        exchange.on_writable = lambda exchange=exchange: (exchange.write([bytes(70_000)]), exchange.end())
    end.connection.resume_writing()
    end.turn()
    sent = end.feed(window_update(0, 1 << 20))
    assert end.connection.streams == {}
    assert sum(len(payload) for kind, _, _, payload in parse(sent) if kind == DATA) > 100_000


SHARE = WireLimits(max_body_bytes=10_000, max_buffered_bytes=100_000)


def test_a_connection_over_its_share_of_memory_gets_no_further_request_until_it_has_read() -> None:
    end = opened(SHARE)
    end.feed(settings_frame({4: 0}) + headers(1, end=True) + headers(3, end=True))
    exchange_of(end).respond(200, (), [bytes(40_000)])
    exchange_of(end, 1).respond(200, (), [bytes(40_000)])
    assert goaway_of(end.turn()) is None
    assert end.listener.budget.held == 80_000
    sent = end.feed(headers(5, end=True))
    assert statuses(sent) == [b"503"]
    assert end.transport.reading
    assert len(end.route.exchanges) == 2
    # What it has is sent as its windows open, and then it may ask again.
    end.feed(b"".join(window_update(number, 1 << 20) for number in (0, 1, 3, 5)))
    assert end.listener.budget.held == 0
    end.feed(headers(7, end=True))
    assert len(end.route.exchanges) == 3


def test_a_small_request_on_a_connection_over_its_share_is_refused_as_grpc_says_it() -> None:
    end = opened(SHARE)
    end.feed(settings_frame({4: 0}) + headers(1, end=True))
    exchange_of(end).respond(200, (), [bytes(60_000)])
    end.turn()
    fields = [*FIELDS, (b"content-type", b"application/grpc")]
    # The third has a head that is known, and would take the short way.
    sent = b"".join(end.feed(headers(number, fields) + frame(DATA, 1, number, b"x")) for number in (3, 5, 7))
    decoder = Decoder()
    blocks = [dict(decoder.decode(payload)) for kind, _, _, payload in parse(sent) if kind == HEADERS]
    assert [block[b"grpc-status"] for block in blocks] == [b"14"] * 3
    assert b"max_buffered_bytes (100000)" in blocks[0][b"grpc-message"]
    assert len(end.route.exchanges) == 1


def test_reading_goes_on_however_much_waits_to_be_sent() -> None:
    """The old deadlock: TCP full, much unsent, and no WINDOW_UPDATE read that would have let it go."""
    end = opened(SHARE)
    end.feed(b"".join(headers(number, end=True) for number in (1, 3, 5)))
    end.connection.pause_writing()
    for exchange in end.route.exchanges:
        exchange.respond(200, (), [bytes(90_000)])
    assert end.transport.reading
    sent = end.turn()
    end.connection.resume_writing()
    sent += end.turn()
    assert end.transport.reading
    sent += end.feed(b"".join(window_update(number, 1 << 20) for number in (0, 1, 3, 5)))
    assert [len(data_of(sent, number)) for number in (1, 3, 5)] == [90_000] * 3
    assert end.connection.streams == {}


def test_a_peer_that_asks_on_and_reads_nothing_is_cut() -> None:
    """Answers without a body need no window."""
    end = opened()
    end.connection.pause_writing()
    number = 1
    while not end.transport.aborted:
        end.feed(headers(number, end=True))
        exchange_of(end, -1).respond(404, ((b"x", b"a" * 1000),), [])
        end.turn()
        number += 2
        assert number < 5000
    assert number > 1000


def test_answers_written_before_the_transport_had_enough_are_no_sign_of_a_deaf_peer() -> None:
    """What its windows allowed was the peer's own wish, however late in the turn it is flushed."""
    end = opened()
    end.feed(settings_frame({4: 1 << 24, 5: 1 << 20}) + window_update(0, 1 << 24) + headers(1, end=True))
    exchange = exchange_of(end)
    exchange.start(200, ())
    for _ in range(8):
        exchange.write([bytes(1 << 19)])
    end.connection.pause_writing()
    assert len(data_of(end.turn())) == 1 << 22
    assert not end.transport.aborted


def test_a_reader_that_returns_its_window_in_small_steps_is_no_flood() -> None:
    end = opened()
    end.feed(headers(1, end=True))
    exchange_of(end).respond(200, (), [bytes(16_000_000)])
    got = len(data_of(end.turn()))
    for _ in range(4_000):
        got += len(data_of(end.feed(window_update(0, 4_096) + window_update(1, 4_096))))
    assert got == 16_000_000
    assert not end.transport.closing


def test_producers_of_many_streams_that_write_on_when_called_back() -> None:
    numbers = range(1, 1_601, 2)
    end = opened()
    end.feed(settings_frame({4: 1 << 20}) + window_update(0, 1 << 26) + b"".join(headers(n, end=True) for n in numbers))
    end.connection.pause_writing()
    for exchange in end.route.exchanges:
        exchange.start(200, ())
        exchange.write([b"first"])
        exchange.on_writable = lambda exchange=exchange: (exchange.write([bytes(17_000)]), exchange.end())
    end.connection.resume_writing()
    sent = end.turn()
    assert end.connection.streams == {}
    assert sum(len(payload) for kind, _, _, payload in parse(sent) if kind == DATA) == 800 * 17_005


def test_a_first_piece_of_a_body_takes_memory_too() -> None:
    end = opened()
    end.feed(headers(1) + frame(DATA, 0, 1, bytes(50_000)))
    assert end.listener.budget.held == 50_000


def test_empty_parts_of_an_answer_are_no_frames() -> None:
    end = opened()
    end.feed(headers(1, end=True) + headers(3, end=True))
    exchange_of(end).respond(200, (), [b"", b"one", b"", b"two", b""])
    exchange_of(end, 1).start(200, ())
    exchange_of(end, 1).write([b"", b"x", b""])
    exchange_of(end, 1).end()
    sent = [(flags, number, payload) for kind, flags, number, payload in parse(end.turn()) if kind == DATA]
    assert sent == [(0, 1, b"one"), (1, 1, b"two"), (0, 3, b"x"), (1, 3, b"")]


def test_streams_with_shut_windows_cost_nothing_when_the_connections_opens() -> None:
    end = opened()
    numbers = range(1, 401, 2)
    end.feed(settings_frame({4: 0}) + b"".join(headers(number, end=True) for number in numbers))
    for exchange in end.route.exchanges:
        exchange.respond(200, (), [b"0123456789"])
    end.turn()
    assert not end.connection.ready
    sent = end.feed(window_update(0, 1) * 100 + window_update(7, 4))
    assert data_of(sent, 7) == b"0123"


def test_a_body_is_refused_when_there_is_no_memory_for_it() -> None:
    end = opened(WireLimits(max_body_bytes=40_000, max_buffered_bytes=100_000))
    length = (b"content-length", b"40000")
    end.feed(headers(1, [*FIELDS, length]) + frame(DATA, 0, 1, bytes(10)))
    assert end.listener.budget.held == 40_000
    sent = end.feed(headers(3, [*FIELDS, length]) + frame(DATA, 0, 3, bytes(10)))
    assert statuses(sent) == [b"503"]
    # One that does not say its size is taken until there is no more.
    sent = end.feed(headers(5) + frame(DATA, 0, 5, bytes(16_000)) + frame(DATA, 0, 5, bytes(16_000)))
    assert statuses(sent) == [b"503"]
    end.feed(frame(DATA, 0, 1, bytes(20_000)) + frame(DATA, 1, 1, bytes(19_990)))
    assert [len(body) for body in end.route.bodies] == [40_000]
    exchange_of(end).respond(200, (), [b"done"])
    assert end.listener.budget.held == 0
    end.feed(headers(7, [*FIELDS, length]) + frame(DATA, 0, 7, bytes(10)))
    assert end.listener.budget.held == 40_000
    end.feed(frame(RST_STREAM, 0, 7, bytes(4)))
    assert end.listener.budget.held == 0
    end.feed(headers(9, [*FIELDS, length]) + frame(DATA, 0, 9, bytes(10)))
    end.connection.connection_lost(None)
    assert end.listener.budget.held == 0


def test_a_slow_peer_is_not_cut_while_it_takes_something() -> None:
    limits = WireLimits(write_timeout=5, body_timeout=5)
    end = opened(limits)
    end.feed(settings_frame({4: 0}) + headers(1, end=True) + headers(3, end=True))
    exchange_of(end).respond(200, (), [b"0123456789"])
    end.turn()
    for _ in range(10):
        assert data_of(advance(end, 4) + end.feed(window_update(1, 1)))
    # Bytes that leave the transport are progress, too, whatever its streams' windows are.
    exchange_of(end, 1).start(200, ())
    end.turn()
    end.connection.pause_writing()
    for buffered in range(90, 10, -10):
        end.transport.buffered = buffered
        advance(end, 4)
        assert not end.transport.aborted
    advance(end, 4)
    advance(end, 4)
    assert end.transport.aborted

    body = opened(limits)
    body.feed(headers(1))
    for _ in range(5):
        body.feed(frame(DATA, 0, 1, bytes(16_384)))
        assert advance(body, 4) == b""
    body.feed(frame(DATA, 0, 1, b"a drip"))
    assert advance(body, 4) == b""
    assert statuses(advance(body, 4)) == [b"408"]


def test_windows_are_given_back_early() -> None:
    end = opened(WireLimits(stream_window=10_000, connection_window=100_000))
    assert end.feed(headers(1) + frame(DATA, 0, 1, bytes(4_000))) == b""
    assert end.feed(frame(DATA, 0, 1, bytes(2_000))) == window_update(1, 6_000)
    sent = b""
    for _ in range(9):
        sent += end.feed(frame(DATA, 0, 1, bytes(5_000)))
    assert sum(frames.uint32.unpack(p)[0] for _, _, number, p in parse(sent) if number == 0) >= 50_000


class Owner:
    told = 0

    def abandoned(self) -> None:
        self.told += 1


def test_a_reset_tells_the_owner_and_later_answers_go_nowhere() -> None:
    end = opened()
    end.feed(headers(1, end=True) + headers(3, end=True))
    owner = Owner()
    first = exchange_of(end)
    first.owner = owner
    first.start(200, ())
    end.feed(frame(RST_STREAM, 0, 1, bytes(4)))
    assert owner.told == 1
    first.write([b"x"])
    first.end()
    first.respond_unary(PREFIX, b"x", 1, SUFFIX)
    assert end.turn() == b""
    exchange_of(end, 1).respond_unary(PREFIX, b"x", 1, SUFFIX)
    assert data_of(end.turn(), 3) == b"x"


def test_a_lost_connection_tells_every_owner_and_later_answers_go_nowhere() -> None:
    end = opened()
    end.feed(headers(1, end=True) + headers(3, end=True) + headers(5, end=True))
    owners = [Owner(), Owner(), Owner()]
    for exchange, owner in zip(end.route.exchanges, owners, strict=True):
        exchange.owner = owner
    end.connection.connection_lost(None)
    assert [owner.told for owner in owners] == [1, 1, 1]
    exchange_of(end).respond_unary(PREFIX, b"x", 1, SUFFIX)
    exchange_of(end, 1).respond(200, (), [b"x"])
    exchange_of(end, 2).start(200, ())
    exchange_of(end, 2).end_with_trailers(SUFFIX)
    assert end.turn() == b""
    assert not end.listener.connections


class Tap:
    """A consumer that shuts its window."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.body = b""
        self.is_over = False
        stream.hold_window()

    def data_received(self, data: bytes) -> None:
        self.body += data

    def ended(self) -> None:
        self.is_over = True

    def shed(self) -> None: ...


class StreamingRoute(Route):
    streaming = True

    def __init__(self) -> None:
        self.taps: list[Tap] = []

    def open(self, exchange: Exchange) -> Consumer:
        self.taps.append(Tap(exchange))
        return self.taps[-1]


def test_a_consumer_may_hold_the_window() -> None:
    route = StreamingRoute()
    end = ServerEnd(Http2ServerConnection, None, WireLimits(stream_window=100), route)
    end.feed(frames.PREFACE + settings_frame({}))
    assert end.feed(headers(1) + frame(DATA, 0, 1, bytes(100))) == b""
    tap = route.taps[0]
    assert len(tap.body) == 100
    tap.stream.release_window()
    assert end.turn() == window_update(1, 100)
    end.feed(frame(DATA, 1, 1, b"x"))
    assert tap.is_over


def test_timeouts() -> None:
    limits = WireLimits(head_timeout=5, body_timeout=8, idle_timeout=20, write_timeout=10)
    dripping = opened(limits)
    dripping.feed(headers(1)[:12])
    assert advance(dripping, 5) == b""
    goaway = goaway_of(advance(dripping, 1))
    assert goaway is not None
    assert "head_timeout (5 s)" in goaway[1]

    waiting = opened(limits)
    waiting.feed(headers(1))
    assert advance(waiting, 8) == b""
    answer = parse(advance(waiting, 1))
    assert b"body_timeout (8 s)" in answer[1][3]

    idle = opened(limits)
    assert advance(idle, 20) == b""
    assert goaway_of(advance(idle, 1)) == (frames.NO_ERROR, "idle")

    deaf = opened(limits)
    deaf.connection.pause_writing()
    deaf.transport.buffered = 100_000
    advance(deaf, 1)
    advance(deaf, 10)
    assert not deaf.transport.aborted
    advance(deaf, 1)
    assert deaf.transport.aborted

    shut = opened(limits)
    shut.feed(settings_frame({4: 0}) + headers(1, end=True))
    exchange_of(shut).respond(200, (), [b"x"])
    shut.turn()
    assert parse(advance(shut, 11))[-1][:3] == (RST_STREAM, 0, 1)


def test_shutting_down_lets_open_streams_finish_and_refuses_new_ones() -> None:
    end = opened()
    end.feed(headers(1, end=True))
    end.connection.shut_down()
    sent = end.turn()
    assert frames.goaway_fields.unpack_from(parse(sent)[0][3]) == (1, 0)
    assert not end.transport.closing
    assert end.feed(headers(3, end=True)) == frames.rst_stream(3, frames.REFUSED_STREAM)
    exchange_of(end).respond_unary(PREFIX, b"done", 4, SUFFIX)
    assert data_of(end.turn()) == b"done"
    assert end.transport.closing

    idle = opened()
    idle.connection.shut_down()
    assert idle.transport.closing


def test_a_client_that_goes_away_gets_its_answers_first() -> None:
    end = opened()
    end.feed(headers(1, end=True) + headers(3, end=True) + frames.goaway(0, 0))
    assert not end.transport.closing
    exchange_of(end).respond(200, (), [b"one"])
    assert data_of(end.turn()) == b"one"
    assert not end.transport.closing
    end.feed(frame(RST_STREAM, 0, 3, bytes(4)))
    assert end.transport.closing


def test_a_large_frame_in_small_pieces() -> None:
    end = opened()
    body = bytes(range(200)) * 100
    padded = frame(DATA, 9, 1, b"\x05" + body + bytes(5))
    end.feed(headers(1))
    end.transport.feed_in_pieces(padded, range(0, len(padded), 7))
    assert end.route.bodies == [body]
    long_block = encode([*FIELDS, (b"x", b"a" * 10_000)])
    data = frame(HEADERS, 5, 3, long_block) + headers(5, end=True)
    end.transport.feed_in_pieces(data, range(0, len(data), 11))
    assert exchange_of(end, 1).head.get(b"x") == b"a" * 10_000
    assert len(end.route.exchanges) == 3


@pytest.mark.interpreted
def test_many_window_updates_in_one_reading_are_acted_on_once() -> None:
    end = opened()
    end.feed(settings_frame({4: 0}) + b"".join(headers(number, end=True) for number in (1, 3, 5)))
    for index in range(3):
        exchange_of(end, index).respond(200, (), [b"0123456789"])
    end.turn()
    rounds: list[int] = []
    pump = end.connection.pump
    end.connection.pump = lambda: (rounds.append(1), pump())
    # The connection's window opens a thousand times while the streams' own stay shut.
    end.feed(window_update(0, 1) * 1000)
    assert len(rounds) == 1
    assert data_of(end.feed(window_update(3, 4) + window_update(3, 6)), 3) == b"0123456789"


def test_a_peer_that_only_pings_does_not_keep_an_unread_answer_for_ever() -> None:
    end = opened(limits=WireLimits(write_timeout=5))
    end.feed(settings_frame({4: 0}) + headers(1, end=True))
    exchange_of(end).respond(200, (), [b"0123456789"])
    end.turn()
    sent = b""
    for tick in range(1, 8):
        end.listener.tick = tick
        sent += end.feed(frame(6, 0, 0, b"12345678"))
        end.connection.check_timeouts(tick)
    sent += end.turn()
    assert (RST_STREAM, 1) in [(kind, number) for kind, _, number, _ in parse(sent)]
    assert not end.connection.streams
