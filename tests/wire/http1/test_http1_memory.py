"""HTTP/1.1, server side: what one connection may hold, of bodies and of answers that are not read."""

from __future__ import annotations

from http1_messages import responses
from wire_fakes import ServerEnd

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.budget import Share
from isochrone.wire.http1.server import Http1Connection

LIMITS = WireLimits(max_body_bytes=200_000, max_buffered_bytes=500_000)


def request(length: int, body: bytes = b"") -> bytes:
    return b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (length, body)


def test_a_body_takes_memory_until_its_request_is_answered() -> None:
    end = ServerEnd(Http1Connection, None, LIMITS)
    end.feed(request(100_000, bytes(10)))
    assert end.listener.budget.held == 100_000
    end.feed(bytes(99_990))
    assert end.listener.budget.held == 100_000
    end.route.exchanges[0].respond(200, (), [b"done"])
    assert end.listener.budget.held == 0


def test_a_large_body_that_comes_whole_in_one_read_takes_memory_too() -> None:
    end = ServerEnd(Http1Connection, None, LIMITS)
    for _ in range(2):  # the second time its head is known
        end.feed(request(100_000, bytes(100_000)))
        assert end.listener.budget.held == 100_000
        end.route.exchanges[-1].respond(200, (), [b"done"])
        assert end.listener.budget.held == 0
    # A small one does not.
    end.feed(request(16_384, bytes(16_384)))
    assert end.listener.budget.held == 0
    end.route.exchanges[-1].respond(200, (), [b"done"])
    end.turn()
    # And one there is no memory for is refused.
    Share(end.listener.budget).add(400_000)
    [(status, _, _)] = responses(end.feed(request(100_000, bytes(100_000))))
    assert status == 503
    assert len(end.route.exchanges) == 3


def test_a_body_there_is_no_memory_for_is_refused_before_it_comes() -> None:
    end = ServerEnd(Http1Connection, None, LIMITS)
    other = ServerEnd(Http1Connection, None, LIMITS)
    other.listener.budget = end.listener.budget
    other.connection.memory.share.budget = end.listener.budget
    end.feed(request(200_000, bytes(10)))
    sent = other.feed(request(200_000, bytes(10)))
    [(status, _, body)] = responses(sent)
    assert status == 503
    assert b"max_buffered_bytes (500000)" in body
    assert end.listener.budget.held == 200_000
    end.connection.connection_lost(None)
    assert end.listener.budget.held == 0


def test_a_chunked_body_takes_memory_as_it_comes() -> None:
    end = ServerEnd(Http1Connection, None, LIMITS)
    end.feed(b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    chunk = b"%x\r\n%s\r\n" % (50_000, bytes(50_000))
    end.feed(chunk)
    held = end.listener.budget.held
    assert 50_000 <= held < 100_000
    end.feed(chunk + b"0\r\n\r\n")
    assert end.listener.budget.held >= 100_000
    end.route.exchanges[0].respond(200, (), [b"done"])
    assert end.listener.budget.held == 0


def test_pipelined_requests_with_large_answers_run_few_at_a_time() -> None:
    end = ServerEnd(Http1Connection, None, WireLimits())
    end.feed(request(1, b"x") * 64)
    # How large answers are is not known yet.
    assert len(end.route.exchanges) == 8
    end.route.exchanges[0].respond(200, (), [bytes(4_000_000)])
    for answered in range(1, 20):
        end.turn()
        assert len(end.route.exchanges) - answered <= max(8 - answered, 2)
        end.route.exchanges[answered].respond(200, (), [bytes(4_000_000)])


def test_pipelined_requests_with_small_answers_run_together() -> None:
    end = ServerEnd(Http1Connection, None, WireLimits())
    end.feed(request(1, b"x") * 64)
    for exchange in list(end.route.exchanges):
        exchange.respond(200, (), [b"small"])
    end.turn()
    assert len(end.route.exchanges) == 64


def test_answers_that_nobody_reads_are_held_and_given_back() -> None:
    end = ServerEnd(Http1Connection, None, LIMITS)
    end.feed(request(1, b"x"))
    end.transport.buffered = 300_000
    end.connection.pause_writing()
    end.route.exchanges[0].respond(200, (), [bytes(300_000)])
    assert end.listener.budget.held == 300_000
    end.transport.buffered = 100_000
    end.connection.check_timeouts(1)
    assert end.listener.budget.held == 100_000
    end.transport.buffered = 0
    end.connection.resume_writing()
    assert end.listener.budget.held == 0


def test_small_answers_that_waited_for_their_turn_are_given_back() -> None:
    end = ServerEnd(Http1Connection, None, LIMITS)
    end.feed(request(1, b"x") * 4)
    first, *others = end.route.exchanges
    for exchange in others:
        exchange.respond(200, (), [bytes(10_000)])
    assert end.listener.budget.held == 30_000
    first.respond(200, (), [b"first"])
    end.turn()
    assert end.listener.budget.held == 0


def test_what_a_slow_reader_took_at_last_is_given_back_without_another_request() -> None:
    end = ServerEnd(Http1Connection, None, LIMITS)
    end.feed(request(1, b"x"))
    end.transport.buffered = 50_000
    end.route.exchanges[0].respond(200, (), [bytes(60_000)])
    assert end.listener.budget.held == 50_000
    end.transport.buffered = 0
    end.connection.check_timeouts(1)
    assert end.listener.budget.held == 0


def test_a_malformed_request_does_not_cut_the_answers_before_it() -> None:
    end = ServerEnd(Http1Connection, None, LIMITS)
    end.feed(request(1, b"x") + b"nonsense\r\n\r\n")
    end.route.exchanges[0].respond(200, (), [bytes(100_000)])
    end.connection.pause_writing()
    for tick in range(1, 20):
        end.transport.buffered = 100_000 - 4_000 * tick
        end.listener.tick = tick
        end.connection.check_timeouts(tick)
        assert not end.transport.aborted
    end.connection.resume_writing()
    end.transport.buffered = 0
    for tick in range(20, 30):
        end.listener.tick = tick
        end.connection.check_timeouts(tick)
    assert end.transport.aborted


def test_answers_ready_before_their_turn_are_held() -> None:
    end = ServerEnd(Http1Connection, None, LIMITS)
    end.feed(request(1, b"x") * 3)
    first, second, third = end.route.exchanges
    third.respond(200, (), [bytes(60_000)])
    second.respond(200, (), [bytes(50_000)])
    assert end.listener.budget.held == 110_000
    first.respond(200, (), [b"first"])
    assert end.listener.budget.held == 0
    assert [len(body) for _, _, body in responses(end.turn())] == [5, 50_000, 60_000]
