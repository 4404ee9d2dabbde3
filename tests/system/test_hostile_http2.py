"""Malformed HTTP/2 on a raw socket: connection errors get GOAWAY with code and reason, stream errors RST_STREAM."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from hostile_client import Victim
from hostile_http2 import (
    ACK,
    CANCEL,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOOD,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    http2,
    rest_block,
    settings,
)
from hostile_models import write_repository
from server_process import StartServer

LIVE = rest_block("GET", "/v2/health/live")
POST = rest_block("POST", "/v2/models/echo/infer")
OPEN = frame(HEADERS, END_HEADERS, 1, POST)


@pytest.fixture(scope="module")
def victim(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    repository = write_repository(tmp_path_factory.mktemp("hostile"))
    with server_factory(repository, "--max-body-bytes", str(4 << 20)) as server:
        yield Victim(server)


@pytest.fixture(autouse=True)
def _unharmed(victim: Victim) -> Iterator[None]:
    yield
    victim.check()


@pytest.mark.parametrize(
    ("sent", "code", "reason"),
    [
        (frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR, "DATA on stream 0"),
        (frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR, "DATA on stream 1, which is not open"),
        (frame(HEADERS, END_HEADERS | END_STREAM, 2, LIVE), PROTOCOL_ERROR, "stream 2, which is even"),
        (frame(HEADERS, END_HEADERS | END_STREAM, 0, LIVE), PROTOCOL_ERROR, "HEADERS on stream 0"),
        (frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + LIVE[:4]), PROTOCOL_ERROR, "padding is longer"),
        (frame(HEADERS, END_HEADERS | PADDED, 1, b""), PROTOCOL_ERROR, "padding is longer"),
        (frame(HEADERS, END_HEADERS | PRIORITISED, 1, b"\0\0"), FRAME_SIZE_ERROR, "too short for its priority"),
        (
            frame(HEADERS, END_HEADERS | PRIORITISED, 1, struct.pack(">IB", 1, 0) + LIVE),
            PROTOCOL_ERROR,
            "depends on itself",
        ),
        (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff"), COMPRESSION_ERROR, "header block"),
        (frame(HEADERS, END_HEADERS, 1, b"\x80"), COMPRESSION_ERROR, "header block"),
        (frame(HEADERS, 0, 1, LIVE) + frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR, "DATA inside a header block"),
        (frame(HEADERS, 0, 1, LIVE) + frame(HEADERS, 4, 3, LIVE), PROTOCOL_ERROR, "HEADERS inside a header block"),
        (frame(HEADERS, 0, 1, LIVE) + frame(PING, 0, 0, b"8 bytes!"), PROTOCOL_ERROR, "must not be interrupted"),
        (frame(HEADERS, 0, 1, LIVE) + frame(CONTINUATION, 4, 3, b""), PROTOCOL_ERROR, "CONTINUATION without"),
        (frame(CONTINUATION, END_HEADERS, 1, b""), PROTOCOL_ERROR, "CONTINUATION without its HEADERS"),
        (
            frame(HEADERS, 0, 1, LIVE) + frame(CONTINUATION, 0, 1, b"") * 100,
            ENHANCE_YOUR_CALM,
            "a header block over",
        ),
        (
            frame(HEADERS, 0, 1, LIVE) + frame(CONTINUATION, 0, 1, b"x" * 16_000) * 10,
            ENHANCE_YOUR_CALM,
            "max_head_bytes",
        ),
        (frame(SETTINGS, 0, 1), PROTOCOL_ERROR, "SETTINGS on a stream"),
        (frame(SETTINGS, 0, 0, b"12345"), FRAME_SIZE_ERROR, "SETTINGS of 5 bytes"),
        (frame(SETTINGS, ACK, 0, b"123456"), FRAME_SIZE_ERROR, "acknowledgement with a payload"),
        (settings({4: 1 << 31}), FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE"),
        (settings({5: 1}), PROTOCOL_ERROR, "MAX_FRAME_SIZE 1"),
        (settings({2: 7}), PROTOCOL_ERROR, "ENABLE_PUSH 7"),
        (frame(PING, 0, 1, b"8 bytes!"), PROTOCOL_ERROR, "PING on a stream"),
        (frame(PING, 0, 0, b"short"), FRAME_SIZE_ERROR, "PING of 5 bytes"),
        (frame(RST_STREAM, 0, 0, b"\0\0\0\0"), PROTOCOL_ERROR, "RST_STREAM on stream 0"),
        (frame(RST_STREAM, 0, 9, b"\0\0\0\0"), PROTOCOL_ERROR, "which is not open"),
        (OPEN + frame(RST_STREAM, 0, 1, b"\0"), FRAME_SIZE_ERROR, "RST_STREAM of 1 bytes"),
        (frame(PRIORITY, 0, 1, b"123"), FRAME_SIZE_ERROR, "PRIORITY of 3 bytes"),
        (frame(PRIORITY, 0, 0, b"12345"), PROTOCOL_ERROR, "PRIORITY without a stream"),
        (frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + LIVE), PROTOCOL_ERROR, "PUSH_PROMISE"),
        (frame(GOAWAY, 0, 1, b"\0" * 8), PROTOCOL_ERROR, "GOAWAY on a stream"),
        (frame(GOAWAY, 0, 0, b"\0"), FRAME_SIZE_ERROR, "GOAWAY is too short"),
        (frame(WINDOW_UPDATE, 0, 0, b"\0"), FRAME_SIZE_ERROR, "WINDOW_UPDATE of 1 bytes"),
        (frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\0"), PROTOCOL_ERROR, "WINDOW_UPDATE of 0"),
        (frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), FLOW_CONTROL_ERROR, "window overflows"),
        (frame(WINDOW_UPDATE, 0, 9, b"\0\0\0\1"), PROTOCOL_ERROR, "idle stream 9"),
        (frame(DATA, 0, 1, b"", length=(1 << 24) - 1), FRAME_SIZE_ERROR, "max_frame_bytes"),
        (frame(HEADERS, 4, 1, b"", length=(1 << 24) - 1), FRAME_SIZE_ERROR, "max_frame_bytes"),
        (OPEN + frame(DATA, PADDED, 1, b"\x05abc"), PROTOCOL_ERROR, "padding is longer"),
    ],
)
def test_a_connection_error_is_told_and_ends_the_connection(
    victim: Victim, sent: bytes, code: int, reason: str
) -> None:
    with http2(victim.http) as end:
        end.send(sent)
        gone = end.until_gone()
    assert (gone.code, reason in gone.reason) == (code, True), gone


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: t\r\n\r\n", b"\xff" * 4096, bytes(range(256)) * 64, b"\0" * 9 * 4000],
    ids=["a request of the other version", "ones", "every byte", "empty DATA on stream 0"],
)
def test_garbage_after_the_preface_ends_the_connection(victim: Victim, garbage: bytes) -> None:
    with http2(victim.http, PREFACE) as end:
        end.send(garbage)
        assert end.until_gone().code > 0


def test_a_preface_that_goes_wrong_is_no_http2(victim: Victim) -> None:
    with http2(victim.http, b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n") as end:
        received = end.socket.recv(4096)
        assert received.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "fields",
    [
        block((":method", "GET"), (":scheme", "http")),
        block((":method", "GET"), (":path", "/v2")),
        block((":method", "GET"), (":scheme", "http"), (":path", "")),
        block((":method", "GET"), (":scheme", "http"), (":path", "v2")),
        block((":method", "GET"), (":method", "GET"), (":scheme", "http"), (":path", "/v2")),
        block((":method", "GET"), (":scheme", "http"), (":path", "/v2"), (":status", "200")),
        block((":method", "GET"), ("a", "b"), (":scheme", "http"), (":path", "/v2")),
        rest_block("GET", "/v2", ("connection", "close")),
        rest_block("GET", "/v2", ("transfer-encoding", "chunked")),
        rest_block("GET", "/v2", ("te", "gzip")),
        rest_block("GET", "/v2", ("Upper", "case")),
        rest_block("GET", "/v2", ("a b", "space")),
        rest_block("GET", "/v2", ("evil", "a\r\nb: c")),
        rest_block("GET", "/v2", ("evil", "a\0b")),
        rest_block("POST", "/v2/models/echo/infer", ("content-length", "-1")),
        rest_block("POST", "/v2/models/echo/infer", ("content-length", "9" * 30)),
    ],
)
def test_malformed_fields_reset_their_stream_alone(victim: Victim, fields: bytes) -> None:
    with http2(victim.http) as end:
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, fields))
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, LIVE))
        answers = end.responses(1, 3)
    assert answers[1].reset == PROTOCOL_ERROR
    assert answers[3].status == 200


def test_a_content_length_that_lies_resets_its_stream_alone(victim: Victim) -> None:
    with http2(victim.http) as end:
        lying = rest_block("POST", "/v2/models/echo/infer", ("content-length", "5"))
        end.send(frame(HEADERS, END_HEADERS, 1, lying), frame(DATA, END_STREAM, 1, b"{}"))
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, LIVE))
        answers = end.responses(1, 3)
    assert answers[1].reset == PROTOCOL_ERROR
    assert answers[3].status == 200


def test_trailers_that_do_not_end_the_stream_reset_it(victim: Victim) -> None:
    with http2(victim.http) as end:
        end.send(OPEN, frame(HEADERS, END_HEADERS, 1, block(("a", "b"))))
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, LIVE))
        answers = end.responses(1, 3)
    assert answers[1].reset == PROTOCOL_ERROR
    assert answers[3].status == 200


def test_absurd_header_counts_and_sizes_are_431_or_the_end(victim: Victim) -> None:
    many = rest_block("GET", "/v2", *((f"a{n}", "x") for n in range(500)))
    with http2(victim.http) as end:
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, many))
        assert end.response(1).status == 431
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, LIVE))
        assert end.response(3).status == 200


def test_an_hpack_bomb_is_refused(victim: Victim) -> None:
    """One field of 4 KB put into the table, then named thousands of times by one byte each."""
    bomb = b"\x40\x04bomb\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 16_000
    with http2(victim.http) as end:
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, rest_block("GET", "/v2") + bomb))
        assert end.response(1).status == 431


def test_an_oversized_body_is_413_on_its_stream_alone(victim: Victim) -> None:
    with http2(victim.http) as end:
        announced = rest_block("POST", "/v2/models/echo/infer", ("content-length", str(1 << 40)))
        end.send(frame(HEADERS, END_HEADERS, 1, announced))
        assert end.response(1).status == 413
        end.send(frame(HEADERS, END_HEADERS, 3, POST))
        for _ in range(80):
            end.send(frame(DATA, 0, 3, b" " * 65_536))
        assert end.response(3).status == 413
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 5, LIVE))
        assert end.response(5).status == 200


def test_tiny_data_frames_cost_their_size_and_no_more(victim: Victim) -> None:
    """A million bytes two by two: as pieces of their own they would take 40 MB and more."""
    with http2(victim.http) as end:
        end.send(frame(HEADERS, END_HEADERS, 1, rest_block("POST", "/v2/repository/index")))
        piece = frame(DATA, 0, 1, b"  ") * 5000
        for _ in range(100):
            end.send(piece)
        end.send(frame(DATA, END_STREAM, 1, b"{}"))
        assert end.response(1).status == 200


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, b"8 bytes!"),
        settings({3: 100}),
        frame(PRIORITY, 0, 1, b"\0\0\0\0\1"),
        frame(0xFA, 0, 0, b"unknown"),
        frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
    ],
    ids=["ping", "settings", "priority", "unknown type", "window update"],
)
def test_floods_of_cheap_frames_are_sent_away(victim: Victim, flood: bytes) -> None:
    with http2(victim.http) as end:
        for _ in range(FLOOD // 500):
            end.send(flood * 500)
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, LIVE))
        gone = end.until_gone()
        assert gone.code in (ENHANCE_YOUR_CALM, -1)


def test_empty_data_frames_are_sent_away(victim: Victim) -> None:
    with http2(victim.http) as end:
        end.send(OPEN, frame(DATA, 0, 1) * FLOOD)
        assert end.until_gone().code in (ENHANCE_YOUR_CALM, -1)


def test_rapid_reset_is_sent_away(victim: Victim) -> None:
    """CVE-2023-44487: streams opened and cancelled at once."""
    with http2(victim.http) as end:
        for start in range(1, FLOOD, 1000):
            end.send(
                *(
                    frame(HEADERS, END_HEADERS, stream, POST) + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))
                    for stream in range(start, start + 1000, 2)
                )
            )
        gone = end.until_gone()
        assert gone.code in (ENHANCE_YOUR_CALM, -1)


def test_more_streams_than_allowed_are_refused_one_by_one(victim: Victim) -> None:
    with http2(victim.http) as end:
        streams = range(1, 2 * 1030, 2)
        end.send(*(frame(HEADERS, END_HEADERS, stream, POST) for stream in streams))
        answer = end.response(2 * 1024 + 1)
        assert answer.reset == 7  # REFUSED_STREAM
        end.send(*(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)) for stream in streams))


def test_a_connection_cut_at_any_frame_boundary_or_inside(victim: Victim) -> None:
    whole = PREFACE + settings() + OPEN + frame(DATA, END_STREAM, 1, b"{}")
    for cut in range(0, len(whole), 11):
        with http2(victim.http, whole[:cut]):
            pass
