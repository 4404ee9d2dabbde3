"""HTTP/2, server side: each violation of RFC 9113 gets its code, on the stream or the connection it belongs to."""

from __future__ import annotations

import pytest
from http2_frames import BLOCK, FIELDS, encode, goaway_of, headers, opened, parse
from hypothesis import given
from hypothesis import strategies as st
from wire_fakes import ServerEnd

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.http2 import frames
from isochrone.wire.http2.frames import (
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    frame,
    settings_frame,
    window_update,
)
from isochrone.wire.http2.server import Http2ServerConnection

OPEN = headers(1)
#: From here on the windows are ours, not the protocol's defaults.
ACKNOWLEDGED = frame(SETTINGS, 1, 0)
CONNECTION_ERRORS = [
    ("DATA on stream 0", frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    ("DATA on an idle stream", frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
    ("DATA on an even stream", frame(DATA, 0, 2, b"x"), PROTOCOL_ERROR),
    ("DATA all padding", OPEN + frame(DATA, 8, 1, b"\x05abcd"), PROTOCOL_ERROR),
    ("DATA padded and empty", OPEN + frame(DATA, 8, 1, b""), PROTOCOL_ERROR),
    ("a frame over the size we allow", OPEN + frame(DATA, 0, 1, bytes(20_001)), FRAME_SIZE_ERROR),
    ("PING over the size we allow", frame(PING, 0, 0, bytes(20_001)), FRAME_SIZE_ERROR),
    ("HEADERS on stream 0", headers(0), PROTOCOL_ERROR),
    ("HEADERS on an even stream", headers(2), PROTOCOL_ERROR),
    ("HEADERS on an even stream below the last", headers(5) + headers(4), PROTOCOL_ERROR),
    ("HEADERS padding", frame(HEADERS, 12, 1, b"\xff" + BLOCK), PROTOCOL_ERROR),
    ("HEADERS padded and empty", frame(HEADERS, 12, 1, b""), PROTOCOL_ERROR),
    ("HEADERS too short for its priority", frame(HEADERS, 0x24, 1, b"\0\0\0"), FRAME_SIZE_ERROR),
    ("HEADERS that depends on itself", frame(HEADERS, 0x24, 1, b"\0\0\0\1\x10" + BLOCK), PROTOCOL_ERROR),
    ("PRIORITY of 4 bytes", frame(PRIORITY, 0, 1, bytes(4)), FRAME_SIZE_ERROR),
    ("PRIORITY on stream 0", frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL_ERROR),
    ("PRIORITY that depends on itself", frame(PRIORITY, 0, 3, b"\0\0\0\3\x10"), PROTOCOL_ERROR),
    ("RST_STREAM of 3 bytes", OPEN + frame(RST_STREAM, 0, 1, bytes(3)), FRAME_SIZE_ERROR),
    ("RST_STREAM on stream 0", frame(RST_STREAM, 0, 0, bytes(4)), PROTOCOL_ERROR),
    ("RST_STREAM on an idle stream", frame(RST_STREAM, 0, 1, bytes(4)), PROTOCOL_ERROR),
    ("SETTINGS on a stream", frame(SETTINGS, 0, 1, b""), PROTOCOL_ERROR),
    ("SETTINGS of 5 bytes", frame(SETTINGS, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    ("SETTINGS ACK with a payload", frame(SETTINGS, 1, 0, bytes(6)), FRAME_SIZE_ERROR),
    ("ENABLE_PUSH 2", settings_frame({2: 2}), PROTOCOL_ERROR),
    ("INITIAL_WINDOW_SIZE 2^31", settings_frame({4: 1 << 31}), FLOW_CONTROL_ERROR),
    ("MAX_FRAME_SIZE 16383", settings_frame({5: 16_383}), PROTOCOL_ERROR),
    ("MAX_FRAME_SIZE 2^24", settings_frame({5: 1 << 24}), PROTOCOL_ERROR),
    ("PUSH_PROMISE", OPEN + frame(PUSH_PROMISE, 4, 1, b"\0\0\0\2" + BLOCK), PROTOCOL_ERROR),
    ("PING of 7 bytes", frame(PING, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    ("PING on a stream", frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR),
    ("GOAWAY on a stream", frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR),
    ("GOAWAY of 7 bytes", frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    ("WINDOW_UPDATE of 3 bytes", frame(WINDOW_UPDATE, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
    ("WINDOW_UPDATE of 0 on the connection", window_update(0, 0), PROTOCOL_ERROR),
    ("WINDOW_UPDATE on an idle stream", window_update(1, 1), PROTOCOL_ERROR),
    ("the connection's window overflows", window_update(0, (1 << 31) - 1), FLOW_CONTROL_ERROR),
    ("a stream's window overflows by SETTINGS", OPEN + window_update(1, 100) + settings_frame({4: (1 << 31) - 1}), 3),
    ("CONTINUATION without HEADERS", frame(CONTINUATION, 4, 1, BLOCK), PROTOCOL_ERROR),
    ("CONTINUATION of another stream", frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 4, 3, b""), PROTOCOL_ERROR),
    ("DATA inside a block", OPEN + frame(HEADERS, 0, 3, BLOCK) + frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
    ("HEADERS inside a block", frame(HEADERS, 0, 1, BLOCK) + headers(3), PROTOCOL_ERROR),
    ("PING inside a block", frame(HEADERS, 0, 1, BLOCK) + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR),
    ("an unknown frame inside a block", frame(HEADERS, 0, 1, BLOCK) + frame(99, 0, 0, b""), PROTOCOL_ERROR),
    ("a block that does not decode", frame(HEADERS, 4, 1, b"\xff\xff\xff\xff\xff"), COMPRESSION_ERROR),
    ("trailers that do not decode", OPEN + frame(HEADERS, 5, 1, b"\xff\xff\xff\xff\xff"), COMPRESSION_ERROR),
]
OVER_THE_WINDOW = [
    ("more than the stream's window", ACKNOWLEDGED + OPEN + frame(DATA, 0, 1, bytes(15_000)) * 5, FLOW_CONTROL_ERROR),
    (
        "more in the last frame",
        ACKNOWLEDGED + OPEN + frame(DATA, 0, 1, bytes(15_000)) * 2 + frame(DATA, 1, 1, bytes(11_000)),
        FLOW_CONTROL_ERROR,
    ),
]


def connection_error(end: ServerEnd, data: bytes, code: int) -> None:
    goaway = goaway_of(end.feed(data))
    assert goaway is not None
    assert goaway[0] == code
    assert goaway[1]
    assert end.transport.closing


@pytest.mark.parametrize(
    ("data", "code"), [case[1:] for case in CONNECTION_ERRORS], ids=[c[0] for c in CONNECTION_ERRORS]
)
def test_connection_errors(data: bytes, code: int) -> None:
    end = ServerEnd(Http2ServerConnection, None, WireLimits(max_frame_bytes=20_000, stream_window=40_000))
    end.feed(PREFACE + settings_frame({}))
    connection_error(end, data, code)


@pytest.mark.interpreted
@pytest.mark.parametrize(("data", "code"), [case[1:] for case in OVER_THE_WINDOW], ids=[c[0] for c in OVER_THE_WINDOW])
def test_a_peer_that_sends_more_than_the_window(data: bytes, code: int) -> None:
    end = ServerEnd(Http2ServerConnection, None, WireLimits(max_frame_bytes=20_000, stream_window=40_000))
    end.feed(PREFACE + settings_frame({}))
    end.connection.acknowledge = lambda stream: None  # the window stays shut
    connection_error(end, data, code)


def test_the_preface_is_asked_for() -> None:
    end = ServerEnd(Http2ServerConnection, None)
    sent = end.feed(b"PRI * HTTP/2.0\r\n\r\nXX")
    assert goaway_of(sent) == (PROTOCOL_ERROR, "the connection does not begin with the HTTP/2 preface")


@pytest.mark.parametrize("first", [frame(PING, 0, 0, bytes(8)), headers(1), window_update(0, 1)])
def test_settings_come_first(first: bytes) -> None:
    end = ServerEnd(Http2ServerConnection, None)
    goaway = goaway_of(end.feed(PREFACE + first))
    assert goaway == (PROTOCOL_ERROR, "the first frame is not SETTINGS")


def field(name: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    return [*FIELDS, (name, value)]


STREAM_ERRORS = [
    ("no :method", FIELDS[1:]),
    ("no :scheme", [FIELDS[0], *FIELDS[2:]]),
    ("no :path", [*FIELDS[:2], FIELDS[3]]),
    ("empty :path", [*FIELDS[:2], (b":path", b"")]),
    (":path without a slash", [*FIELDS[:2], (b":path", b"v2")]),
    ("a second :path", field(b":path", b"/")),
    ("unknown pseudo-header", field(b":protocol", b"websocket")),
    (":status in a request", field(b":status", b"200")),
    ("pseudo-header after a field", [(b"x", b"1"), *FIELDS]),
    ("upper case", field(b"X-Upper", b"1")),
    ("empty name", field(b"", b"1")),
    ("space in a name", field(b"x y", b"1")),
    ("colon-less control byte in a name", field(b"x\x01", b"1")),
    ("NUL in a value", field(b"x", b"a\0b")),
    ("CR LF in a value", field(b"x", b"a\r\nb: c")),
    ("connection", field(b"connection", b"close")),
    ("transfer-encoding", field(b"transfer-encoding", b"chunked")),
    ("keep-alive", field(b"keep-alive", b"1")),
    ("upgrade", field(b"upgrade", b"x")),
    ("proxy-connection", field(b"proxy-connection", b"x")),
    ("te other than trailers", field(b"te", b"gzip")),
    ("content-length not a number", field(b"content-length", b"1x")),
    ("two content-lengths that differ", [*field(b"content-length", b"0"), (b"content-length", b"2")]),
]


@pytest.mark.parametrize("fields", [case[1] for case in STREAM_ERRORS], ids=[case[0] for case in STREAM_ERRORS])
def test_malformed_requests_are_reset_alone(fields: list[tuple[bytes, bytes]]) -> None:
    end = opened()
    sent = end.feed(headers(1, fields, end=True) + headers(3, end=True))
    assert sent == frames.rst_stream(1, PROTOCOL_ERROR)
    assert len(end.route.exchanges) == 1
    assert not end.transport.closing


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("shorter", headers(1, field(b"content-length", b"3")) + frame(DATA, 1, 1, b"ab"), PROTOCOL_ERROR),
        ("longer", headers(1, field(b"content-length", b"3")) + frame(DATA, 1, 1, b"abcd"), PROTOCOL_ERROR),
        ("none", headers(1, field(b"content-length", b"3"), end=True), PROTOCOL_ERROR),
        ("zero increment", OPEN + window_update(1, 0), PROTOCOL_ERROR),
        ("window overflow", OPEN + window_update(1, (1 << 31) - 1), FLOW_CONTROL_ERROR),
        ("trailers that do not end", OPEN + headers(1, [(b"x", b"1")]), PROTOCOL_ERROR),
        ("pseudo-header in trailers", OPEN + headers(1, end=True), PROTOCOL_ERROR),
        ("HEADERS after the end", headers(1, end=True) + headers(1, [(b"x", b"1")], end=True), STREAM_CLOSED),
        ("DATA after the end", headers(1, end=True) + frame(DATA, 0, 1, b"x"), STREAM_CLOSED),
    ],
)
def test_stream_errors(name: str, data: bytes, code: int) -> None:
    end = opened()
    sent = end.feed(data)
    assert sent == frames.rst_stream(1, code), name
    assert not end.transport.closing
    end.feed(headers(3, end=True))
    assert end.route.exchanges[-1].id == 3  # type: ignore[attr-defined]


def test_what_the_standard_allows_is_taken() -> None:
    end = opened()
    data = [
        headers(1) + frame(DATA, 8, 1, b"\x00") + frame(DATA, 9, 1, b"\x02ab\0\0"),
        frame(HEADERS, 0x2D, 3, b"\x01\0\0\0\0\x10" + BLOCK + b"\0"),
        headers(5) + headers(5, [(b"x", b"1")], end=True),
        frame(PRIORITY, 0, 7, b"\0\0\0\1\x10"),
        frame(99, 255, 1234, b"unknown"),
        headers(9, field(b"content-length", b"2")) + frame(DATA, 0, 9, b"a") + frame(DATA, 1, 9, b"b"),
        headers(11, field(b"te", b"trailers"), end=True),
        frame(HEADERS, 5, 1 << 31 | 13, BLOCK),
        frame(HEADERS, 4, 15, BLOCK) + frame(DATA, 1, 1 << 31 | 15, b"reserved bit"),
        frame(DATA, 0, 1, b"late"),
        window_update(1, 1) + frame(RST_STREAM, 0, 1, bytes(4)),
    ]
    for exchange_data in data:
        sent = end.feed(exchange_data)
        assert goaway_of(sent) is None
    assert end.route.bodies == [b"ab", b"", b"", b"ab", b"", b"", b"reserved bit"]


@given(cuts=st.lists(st.integers(0, 60), max_size=6), padding=st.integers(0, 20), pieces=st.lists(st.integers(0, 60)))
def test_a_block_may_come_in_any_frames(cuts: list[int], padding: int, pieces: list[int]) -> None:
    block = encode([*FIELDS, (b"x", b"12345")])
    parts, start = [], 0
    for cut in [*sorted(min(cut, len(block)) for cut in cuts), len(block)]:
        parts.append(block[start:cut])
        start = cut
    first = bytes([padding]) + parts[0] + bytes(padding)
    flags = frames.PADDED | frames.END_STREAM | (0 if parts[1:] else frames.END_HEADERS)
    data = frame(HEADERS, flags, 1, first)
    for index, part in enumerate(parts[1:], 2):
        data += frame(CONTINUATION, frames.END_HEADERS if index == len(parts) else 0, 1, part)
    end = opened()
    end.transport.feed_in_pieces(data, pieces)
    assert end.route.exchanges[0].head.get(b"x") == b"12345"


@given(data=st.binary(max_size=100), cuts=st.lists(st.integers(0, 100), max_size=4))
def test_no_bytes_raise(data: bytes, cuts: list[int]) -> None:
    end = opened()
    end.transport.feed_in_pieces(OPEN + data, cuts)
    parse(end.turn())


PING_FRAME = frame(PING, 0, 0, bytes(8))
FLOODS = [
    (
        "rapid reset",
        b"".join(headers(2 * i + 1, end=True) + frame(RST_STREAM, 0, 2 * i + 1, bytes(4)) for i in range(60)),
    ),
    ("ping", PING_FRAME * 30),
    ("ping answers", frame(PING, 1, 0, bytes(8)) * 30),
    ("settings", settings_frame({}) * 30),
    ("answers to settings", ACKNOWLEDGED * 30),
    (
        "streams that we have to reset (CVE-2025-8671)",
        b"".join(headers(2 * i + 1) + window_update(2 * i + 1, 0) for i in range(60)),
    ),
    ("empty DATA", OPEN + frame(DATA, 0, 1, b"") * 30),
    ("empty padded DATA", OPEN + frame(DATA, 8, 1, b"\x01\0") * 30),
    (
        "DATA on a closed stream",
        headers(1, end=True) + frame(RST_STREAM, 0, 1, bytes(4)) + frame(DATA, 0, 1, b"x") * 30,
    ),
    ("priority", frame(PRIORITY, 0, 1, bytes(5)) * 30),
    ("unknown frames", frame(99, 0, 0, b"") * 30),
    ("malformed requests", b"".join(headers(2 * i + 1, FIELDS[1:], end=True) for i in range(60))),
    ("window updates", window_update(0, 1) * 30),
    (
        "header blocks of many kilobytes",
        b"".join(headers(2 * i + 1, [*FIELDS, (b"x", b"a" * 9_800)]) for i in range(5)),
    ),
    ("empty CONTINUATION", frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1, b"") * 70),
    ("large CONTINUATION", frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1, bytes(500)) * 3),
]


@pytest.mark.parametrize("data", [case[1] for case in FLOODS], ids=[case[0] for case in FLOODS])
def test_floods_are_sent_away(data: bytes) -> None:
    end = opened(WireLimits(max_control_frames_per_second=20, max_head_bytes=1000))
    goaway = goaway_of(end.feed(data))
    assert goaway is not None
    assert goaway[0] == ENHANCE_YOUR_CALM
    assert "max_control_frames_per_second is 20" in goaway[1] or "max_head_bytes (1000)" in goaway[1]
    assert end.transport.closing


def test_what_honest_clients_send_under_overload_is_no_flood() -> None:
    """Time-outs, hedges' losers, bodies under way on streams that were refused, window updates for every answer."""
    end = opened(WireLimits(max_control_frames_per_second=20, max_streams=4))
    end.feed(b"".join(headers(number, end=True) for number in (1, 3, 5, 7)))
    refused = b"".join(headers(9 + 2 * i) + frame(DATA, 1, 9 + 2 * i, b"body") for i in range(30))
    end.feed(refused)
    assert not end.transport.closing
    for exchange in end.route.exchanges:
        exchange.arrived -= 10_000_000  # they have waited for 10 ms
    end.feed(b"".join(frame(RST_STREAM, 0, number, bytes(4)) for number in (1, 3, 5, 7)))
    for i in range(100):
        number = 101 + 2 * i
        end.feed(headers(number, end=True))
        end.route.exchanges[-1].arrived -= 10_000_000
        end.feed(frame(RST_STREAM, 0, number, bytes(4)))
    assert not end.transport.closing
    for i in range(100):
        number = 401 + 2 * i
        end.feed(headers(number, end=True))
        end.route.exchanges[-1].respond(200, (), [b"answer"])
        end.feed(window_update(0, 6) + frame(RST_STREAM, 0, number, bytes(4)))
    assert not end.transport.closing


def test_a_header_block_far_over_its_limit_is_not_decoded() -> None:
    end = opened(WireLimits(max_head_bytes=20_000))
    goaway = goaway_of(end.feed(frame(HEADERS, 5, 1, bytes(40_001))[:9]))
    assert goaway == (ENHANCE_YOUR_CALM, "a header block over max_head_bytes (20000)")


def test_the_same_frames_spread_over_seconds_are_no_flood() -> None:
    end = opened(WireLimits(max_control_frames_per_second=20))
    for tick in range(10):
        end.feed(PING_FRAME * 15)
        end.connection.check_timeouts(tick)
    assert not end.transport.closing


def test_streams_above_the_limit_are_refused() -> None:
    end = opened(WireLimits(max_streams=2))
    sent = end.feed(headers(1) + headers(3) + headers(5))
    assert sent == frames.rst_stream(5, REFUSED_STREAM)
    assert sorted(end.connection.streams) == [1, 3]


@pytest.mark.parametrize(
    ("fields", "limits", "words"),
    [
        ([*FIELDS, (b"x", b"a" * 2000)], {"max_head_bytes": 1000}, b"max_head_bytes is 1000"),
        ([*FIELDS, *[(b"x", b"a")] * 10], {"max_headers": 8}, b"max_headers is 8"),
    ],
)
def test_a_head_over_its_limit_is_answered(
    fields: list[tuple[bytes, bytes]], limits: dict[str, int], words: bytes
) -> None:
    end = opened(WireLimits(**limits))
    sent = end.feed(headers(1, fields, end=True))
    answer = parse(sent)
    assert [kind for kind, _, _, _ in answer] == [HEADERS, DATA]
    assert b"431" in answer[0][3]
    assert words in answer[1][3]
    assert not end.transport.closing


def test_a_body_announced_over_its_limit_is_answered() -> None:
    end = opened(WireLimits(max_body_bytes=10))
    answer = parse(end.feed(headers(1, field(b"content-length", b"11"))))
    assert [kind for kind, _, _, _ in answer] == [HEADERS, DATA, RST_STREAM]
    assert b"max_body_bytes (10)" in answer[1][3]
