"""Slow readers and peers that read nothing: bytes that go are progress, wherever they waited."""

from __future__ import annotations

import asyncio
import socket

import pytest
from http2_frames import advance, data_of, exchange_of, headers, opened, parse
from wire_fakes import FakeTransport, ServerEnd

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.http1.server import Http1Connection
from isochrone.wire.http2 import frames
from isochrone.wire.http2.frames import DATA, PREFACE, RST_STREAM, frame, settings_frame, window_update
from isochrone.wire.http2.server import Http2ServerConnection
from isochrone.wire.progress import Progress, in_kernel


class Quiet(asyncio.Protocol):
    """Says nothing."""


def resets(sent: bytes) -> list[int]:
    return [stream for kind, _, stream, _ in parse(sent) if kind == RST_STREAM]


def test_a_stream_whose_last_bytes_are_still_on_their_way_is_not_reset() -> None:
    end = opened(WireLimits(write_timeout=10))
    end.feed(settings_frame({4: 1000}) + headers(1, end=True))
    exchange_of(end).respond(200, (), [bytes(5_000)])
    assert len(data_of(end.turn())) == 1000
    # The peer reads 30 bytes a second: it cannot open a window for what it has not got.
    for buffered in range(1000, 0, -30):
        end.transport.buffered = buffered
        assert resets(advance(end, 1)) == []
    end.transport.buffered = 0
    assert resets(advance(end, 1)) == []
    # It has got everything now, and opens its window in time; then no more.
    for _ in range(9):
        assert resets(advance(end, 1)) == []
    assert len(data_of(end.feed(window_update(1, 100)))) == 100
    for _ in range(10):
        assert resets(advance(end, 1)) == []
    assert resets(advance(end, 1)) == [1]


def test_what_was_written_behind_a_streams_bytes_is_no_progress_of_its_own() -> None:
    end = opened(WireLimits(write_timeout=10))
    end.feed(settings_frame({4: 10}) + headers(1, end=True))
    exchange_of(end).respond(200, (), [bytes(5_000)])
    end.turn()
    for second in range(10):
        # Its transport is never empty, and goes on.
        end.feed(frames.frame(frames.PING, 0, 0, bytes(8)))
        end.transport.buffered = 10
        assert resets(advance(end, 1)) == [], second
    end.feed(frames.frame(frames.PING, 0, 0, bytes(8)))
    assert resets(advance(end, 1)) == [1]


def test_bytes_in_the_kernel_are_on_their_way() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listening.getsockname())
    theirs, _ = listening.accept()
    with listening, ours, theirs:
        ours.setblocking(False)
        transport = FakeTransport(Quiet(), extra={"socket": ours})
        progress = Progress(0)
        assert in_kernel(transport) == 0
        try:
            while True:
                progress.written += ours.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        transport.buffered = 1000
        progress.written += transport.buffered
        progress.update(transport, 1)
        assert 0 < in_kernel(transport) < progress.written
        assert not progress.update(transport, 5)
        assert progress.at == 1
        # The peer reads what its own kernel holds and more, and the transport has passed on nothing yet.
        left = progress.passed + 1
        while left > 0:
            left -= len(theirs.recv(1 << 16))
        while not progress.update(transport, 9):
            pass  # its kernel acknowledges when it likes
        assert progress.at == 9
    assert in_kernel(transport) == 0


def test_nothing_waits() -> None:
    progress, transport = Progress(0), FakeTransport(Quiet())
    assert not progress.update(transport, 7)
    assert progress.at == 7
    progress.clear(8)
    assert progress.at == 8


OLD = 1000  # seconds that a listener has been running
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


def is_cut_after_the_write_timeout_alone(end: ServerEnd) -> bool:
    """The peer's side has acknowledged nothing of the last answer: how long until its connection is cut?"""
    for _ in range(60):
        advance(end, 1)
        if end.transport.aborted:
            return False
    # The first sweep may find that an earlier answer has gone.
    advance(end, 1)
    advance(end, 1)
    return end.transport.aborted


def test_a_first_large_answer_of_http1_gets_the_whole_write_timeout_on_an_old_listener() -> None:
    end = ServerEnd(Http1Connection, None, WireLimits(write_timeout=60), tick=OLD)
    end.feed(REQUEST)
    exchange_of(end).respond(200, (), [bytes(10_000_000)])
    end.transport.buffered = end.connection.progress.written
    assert end.transport.buffered == len(end.turn())
    end.connection.pause_writing()
    assert is_cut_after_the_write_timeout_alone(end)


@pytest.mark.parametrize("small", [0, 1])
def test_a_large_answer_of_http1_on_an_old_connection_gets_the_whole_write_timeout(small: int) -> None:
    end = ServerEnd(Http1Connection, None, WireLimits(write_timeout=60))
    for index in range(small):
        end.feed(REQUEST)
        exchange_of(end, index).respond(200, (), [b"small"])
        end.turn()
    end.feed(REQUEST)
    for _ in range(OLD):
        advance(end, 1)
    exchange_of(end, small).respond(200, (), [bytes(10_000_000)])
    end.transport.buffered = len(end.turn())
    end.connection.pause_writing()
    assert is_cut_after_the_write_timeout_alone(end)


def test_a_first_large_answer_of_http2_gets_the_whole_write_timeout_on_an_old_listener() -> None:
    end = ServerEnd(Http2ServerConnection, None, WireLimits(write_timeout=60), tick=OLD)
    end.feed(PREFACE + settings_frame({4: 1 << 30}) + window_update(0, 1 << 29) + headers(1, end=True))
    exchange_of(end).respond(200, (), [bytes(10_000_000)])
    end.turn()
    end.transport.buffered = end.connection.progress.written
    assert is_cut_after_the_write_timeout_alone(end)


def test_a_window_that_was_always_shut_is_a_stall_only_after_its_time() -> None:
    end = ServerEnd(Http2ServerConnection, None, WireLimits(write_timeout=60), tick=OLD)
    end.feed(PREFACE + settings_frame({4: 0}) + headers(1, end=True) + headers(3, end=True))
    exchange_of(end).respond(200, (), [b"x"])
    end.turn()
    for second in range(1, 6):
        advance(end, 1)
        assert not end.connection.is_stalled(OLD + second, 5)
    # What joins those that wait is no progress.
    exchange_of(end, 1).respond(200, (), [b"x"])
    advance(end, 1)
    assert end.connection.is_stalled(OLD + 6, 5)


def test_all_that_is_written_is_counted() -> None:
    for size in (5, 20_000, 40_000):
        end = ServerEnd(Http1Connection, None)
        end.feed(REQUEST)
        exchange_of(end).respond(200, (), [bytes(size)])
        assert end.connection.progress.written == len(end.turn())
    streamed = ServerEnd(Http1Connection, None)
    streamed.feed(REQUEST)
    exchange = exchange_of(streamed)
    exchange.start(200, ())
    exchange.write([bytes(40_000)])
    exchange.end()
    sent = streamed.turn()
    assert streamed.connection.progress.written == len(sent)
    end = ServerEnd(Http2ServerConnection)
    sent = end.feed(PREFACE + settings_frame({}) + headers(1) + frame(DATA, 1, 1, b"body"))
    assert end.connection.progress.written == len(sent)
