"""Slow readers and deaf ones: bytes that go are progress, wherever they waited."""

from __future__ import annotations

import asyncio
import socket

from test_http2_flow import advance, data_of, exchange_of
from test_http2_strictness import headers, opened, parse
from wire_fakes import FakeTransport

from isochrone.settings import WireLimits
from isochrone.wire import frames
from isochrone.wire.frames import RST_STREAM, settings_frame, window_update
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
        progress = Progress()
        assert in_kernel(transport) == 0
        try:
            while True:
                progress.written += ours.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        transport.buffered = 1000
        progress.written += transport.buffered
        progress.look(transport, 1)
        assert 0 < in_kernel(transport) < progress.written
        assert not progress.look(transport, 5)
        assert progress.at == 1
        # The peer reads what its own kernel holds and more, and the transport has passed on nothing yet.
        left = progress.passed + 1
        while left > 0:
            left -= len(theirs.recv(1 << 16))
        while not progress.look(transport, 9):
            pass  # its kernel acknowledges when it likes
        assert progress.at == 9
    assert in_kernel(transport) == 0


def test_nothing_waits() -> None:
    progress, transport = Progress(), FakeTransport(Quiet())
    assert not progress.look(transport, 7)
    assert progress.at == 7
    progress.rest(8)
    assert progress.at == 8
