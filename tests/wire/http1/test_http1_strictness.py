"""HTTP/1.1, server side: what is refused, with which status and words, and how a refusal reaches its reader."""

from __future__ import annotations

import pytest
from http1_messages import request, responses
from hypothesis import given
from hypothesis import strategies as st
from wire_fakes import ServerEnd

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.direct_receiver import LARGE_BODY
from isochrone.wire.http1.server import Http1Connection

START = b"POST /v2 HTTP/1.1\r\nhost: a\r\n"


def refused(data: bytes, limits: WireLimits | None = None) -> tuple[int, str]:
    end = ServerEnd(Http1Connection, limits=limits)
    end.transport.feed(data)
    assert end.route.exchanges == []
    ((status, fields, body),) = responses(end.turn())
    assert fields[b"connection"] == b"close"
    assert fields[b"content-type"] == b"application/json"
    return status, body.decode()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        # Smuggling: two readers would disagree about where the message ends.
        (START + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (START + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n", 400),
        (START + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400),
        (START + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc", 400),
        (START + b"content-length: 3, 3\r\n\r\nabc", 400),
        (START + b"content-length: +3\r\n\r\nabc", 400),
        (START + b"content-length: -3\r\n\r\nabc", 400),
        (START + b"content-length: 0x3\r\n\r\nabc", 400),
        (START + b"content-length: 99999999999999999999999\r\n\r\nabc", 400),
        (START + b"content-length : 3\r\n\r\nabc", 400),
        (START + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (START + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (START + b"transfer-encoding: identity\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (START + b"transfer-encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n", 400),
        (START + b"transfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 400),
        (START + b"transfer-encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nhost: a\n\nGET /b HTTP/1.1\r\nhost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\nx: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nhost: a\n\n", 400),
        (START + b"x: a\r\n folded\r\n\r\n", 400),
        (START + b"x: a\0b\r\n\r\n", 400),
        (START + b"x: a\rb: c\r\n\r\n", 400),
        (START + b"no colon\r\n\r\n", 400),
        # A parser may skip these; bytes that arrive in pieces were rejected.
        (b"\n\n" + START + b"\r\n", 400),
        (b"\r\n\n" + START + b"\r\n", 400),
        (b"\r" + START + b"\r\n", 400),
        (b" " + START + b"\r\n", 400),
        # Heads that are no request.
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/3.7\r\nhost: a\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (START + b"expect: a-pony\r\ncontent-length: 1\r\n\r\n", 417),
    ],
)
def test_refuses(data: bytes, status: int) -> None:
    given_status, words = refused(data)
    assert given_status == status
    assert words.startswith('{"error":"')


@pytest.mark.parametrize(
    ("data", "limits", "status", "words"),
    [
        (START + b"x: " + b"a" * 2000 + b"\r\n\r\n", {"max_head_bytes": 1000}, 431, "max_head_bytes (1000)"),
        (START + b"x: " + b"a" * 2000, {"max_head_bytes": 1000}, 431, "max_head_bytes (1000)"),
        (START + b"x: a\r\n" * 20 + b"\r\n", {"max_headers": 10}, 431, "max_headers is 10"),
        (START + b"content-length: 101\r\n\r\n", {"max_body_bytes": 100}, 413, "max_body_bytes (100)"),
        (
            START + b"transfer-encoding: chunked\r\n\r\n" + b"3c\r\n" + b"a" * 60 + b"\r\n3c\r\n" + b"a" * 60,
            {"max_body_bytes": 100},
            413,
            "max_body_bytes (100)",
        ),
    ],
)
def test_limits_are_named(data: bytes, limits: dict[str, int], status: int, words: str) -> None:
    given_status, message = refused(data, WireLimits(**limits))
    assert given_status == status
    assert words in message


def test_what_the_limits_allow_passes() -> None:
    limits = WireLimits(max_head_bytes=1000, max_headers=10, max_body_bytes=100)
    end = ServerEnd(Http1Connection, limits=limits)
    assert responses(end.feed(request(b"a" * 100)))[0][0] == 200
    assert responses(end.feed(request(b"a" * 100, chunks=7)))[0][0] == 200
    assert responses(end.feed(START + b"x: a\r\n" * 9 + b"\r\n"))[0][0] == 200


def test_empty_lines_before_a_request_are_ignored() -> None:
    end = ServerEnd(Http1Connection)
    assert responses(end.feed(b"\r\n\r\n\r\n" + request(b"a")))[0][2] == b"a"


def test_an_absolute_target_is_taken_by_its_path() -> None:
    end = ServerEnd(Http1Connection)
    end.feed(b"GET http://a.test:80/v2/health?x=1 HTTP/1.1\r\nhost: a.test\r\n\r\n")
    assert end.route.exchanges[0].head.target == b"/v2/health?x=1"


def test_an_upgrade_is_ignored() -> None:
    end = ServerEnd(Http1Connection)
    extra = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    assert responses(end.feed(request(b"body", extra=extra)))[0][2] == b"body"


def test_a_refusal_comes_after_earlier_answers() -> None:
    end = ServerEnd(Http1Connection, None)
    end.transport.feed(request(b"a") + b"nonsense\r\n\r\n")
    assert end.turn() == b""
    end.listener.tick = 100
    end.connection.check_timeouts(100)
    assert not end.transport.aborted
    end.route.exchanges[0].respond(200, (), [b"first"])
    assert [status for status, _, _ in responses(end.turn())] == [200, 400]


def test_a_refused_client_gets_time_to_read_its_refusal() -> None:
    end = ServerEnd(Http1Connection, limits=WireLimits(max_body_bytes=10))
    assert responses(end.feed(request(b"a" * 11)))[0][0] == 413
    # Closing now would reset the connection under the refusal while the body still comes.
    assert not end.transport.closing
    assert end.feed(b"a" * 100_000 + request(b"ok")) == b""
    end.connection.check_timeouts(2)
    assert not end.transport.aborted
    end.connection.check_timeouts(3)
    assert end.transport.aborted


def advance(end: ServerEnd, ticks: int) -> bytes:
    end.listener.tick += ticks
    end.connection.check_timeouts(end.listener.tick)
    return end.turn()


def test_a_head_that_drips_is_refused() -> None:
    end = ServerEnd(Http1Connection, limits=WireLimits(head_timeout=5, idle_timeout=60))
    end.feed(b"GET / HT")
    assert advance(end, 4) == b""
    end.feed(b"TP")
    ((status, _, body),) = responses(advance(end, 2))
    assert status == 408
    assert b"head_timeout (5 s)" in body


@pytest.mark.parametrize("size", [10, 4 * LARGE_BODY])
def test_a_body_that_drips_is_refused(size: int) -> None:
    end = ServerEnd(Http1Connection, limits=WireLimits(body_timeout=5))
    end.transport.feed(START + b"content-length: %d\r\n\r\n" % size)
    end.transport.feed(b"abc")
    assert advance(end, 5) == b""
    ((status, _, body),) = responses(advance(end, 1))
    assert status == 408
    assert b"body_timeout (5 s)" in body
    end.transport.feed(b"x" * 2 * LARGE_BODY)  # dropped
    assert end.route.exchanges == []


def test_an_idle_connection_is_closed_and_a_working_one_is_not() -> None:
    limits = WireLimits(idle_timeout=5)
    end = ServerEnd(Http1Connection, None, limits)
    end.feed(request(b"a"))
    advance(end, 100)
    assert not end.transport.closing
    end.route.exchanges[0].respond(200, (), [])
    advance(end, 5)
    assert not end.transport.closing
    advance(end, 1)
    assert end.transport.closing


def test_a_reader_that_never_reads_is_cut() -> None:
    end = ServerEnd(Http1Connection, limits=WireLimits(write_timeout=5))
    end.connection.pause_writing()
    end.transport.buffered = 100_000
    advance(end, 1)
    advance(end, 5)
    assert not end.transport.aborted
    advance(end, 1)
    assert end.transport.aborted


def test_a_reader_that_is_slow_is_not_cut() -> None:
    end = ServerEnd(Http1Connection, limits=WireLimits(write_timeout=5))
    end.connection.pause_writing()
    for buffered in range(100_000, 50_000, -1000):
        end.transport.buffered = buffered
        advance(end, 4)
    assert not end.transport.aborted


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=4))
def test_no_bytes_raise_or_hang(data: bytes, cuts: list[int]) -> None:
    end = ServerEnd(Http1Connection)
    end.transport.feed_in_pieces(data + b"\r\n\r\n", cuts)
    for status, _, _ in responses(end.turn()):
        assert status in (200, 400, 417, 431, 501)


@given(
    head=st.lists(
        st.sampled_from(
            [
                b"content-length: 3",
                b"content-length: 0",
                b"transfer-encoding: chunked",
                b"connection: close",
                b"expect: 100-continue",
                b"host: b",
                b"upgrade: x",
                b"connection: upgrade",
            ]
        ),
        max_size=4,
    )
)
def test_a_body_is_never_taken_for_a_request(head: list[bytes]) -> None:
    """Whatever the head says, bytes of its body must not become a request of their own unless framing says so."""
    end = ServerEnd(Http1Connection)
    lines = b"".join(line + b"\r\n" for line in head)
    end.transport.feed(START + lines + b"\r\n" + b"0\r\n\r\n" + request(b"second"))
    lengths = [line for line in head if line.startswith((b"content-length", b"transfer-encoding"))]
    if lengths == [b"transfer-encoding: chunked"] and b"host: b" not in head:
        assert end.route.bodies == ([b""] if b"connection: close" in head else [b"", b"second"])
    if len(lengths) > 1:
        assert end.route.bodies == []
