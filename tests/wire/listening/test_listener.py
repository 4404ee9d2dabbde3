"""The listener: which protocol a connection speaks, how many it holds, and how it stops."""

from __future__ import annotations

import asyncio
import ssl
from itertools import pairwise
from typing import Any

import pytest
from http1_messages import request, responses
from http2_frames import headers, parse
from wire_fakes import FakeTransport, HoldingRoute, OneRoute, UnboundListener, echo

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.http1.server import Http1Connection
from isochrone.wire.http2.frames import PREFACE, settings_frame
from isochrone.wire.http2.server import Http2ServerConnection
from isochrone.wire.listening.listener import Listener, _Sniffer


def accept(listener: Listener) -> FakeTransport:
    return FakeTransport(_Sniffer(listener))


def listening(limits: WireLimits | None = None) -> UnboundListener:
    return UnboundListener(OneRoute(HoldingRoute(echo)), limits)


@pytest.mark.parametrize("cut", range(len(PREFACE) + 10))
def test_the_first_bytes_tell_http2_wherever_they_are_split(cut: int) -> None:
    transport = accept(listening())
    transport.feed_in_pieces(PREFACE + settings_frame({}) + headers(1, end=True), [cut])
    assert isinstance(transport.protocol, Http2ServerConnection)
    assert parse(transport.take())[-1][:3] == (1, 5, 1)


@pytest.mark.parametrize("data", [request(b"a"), request(method=b"PUT"), b"PRI / HTTP/1.1\r\nhost: a\r\n\r\n"])
@pytest.mark.parametrize("cut", [0, 1, 2, 4, 7])
def test_anything_else_is_http1(data: bytes, cut: int) -> None:
    transport = accept(listening())
    transport.feed_in_pieces(data, [cut])
    assert isinstance(transport.protocol, Http1Connection)
    assert responses(transport.take())[0][0] in (200, 400)


def test_connections_above_the_limit_are_told_so() -> None:
    listener = listening(WireLimits(max_connections=2))
    first, second, third = (accept(listener) for _ in range(3))
    ((status, _, body),) = responses(third.take())
    assert status == 503
    assert b"max_connections (2)" in body
    assert third.closing
    assert listener.refused == 1
    third.protocol.connection_lost(None)
    first.feed(request(b"a"))
    first.protocol.connection_lost(None)
    fourth = accept(listener)
    assert not fourth.closing
    assert not second.closing


def test_a_client_that_speaks_tls_to_a_plain_port_is_told_at_once() -> None:
    hello = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    transport = accept(listening())
    transport.feed(hello.read())
    ((status, _, body),) = responses(transport.take())
    assert status == 400
    assert b"no TLS" in body
    assert transport.closing


def test_a_silent_connection_is_dropped_by_its_timeouts() -> None:
    listener = listening(WireLimits(head_timeout=5, idle_timeout=50))
    silent, begun = accept(listener), accept(listener)
    begun.feed(b"PRI")
    for connection in list(listener.connections):
        connection.check_timeouts(6)
    assert begun.aborted
    assert not silent.aborted
    for connection in list(listener.connections):
        connection.check_timeouts(51)
    assert silent.aborted


class Loud:
    """A connection whose check fails."""

    transport: Any = None

    def check_timeouts(self, tick: int) -> None:
        raise RuntimeError("broken")


def test_stopping_waits_for_answers_and_cuts_what_is_left() -> None:
    async def scenario() -> tuple[int, FakeTransport, FakeTransport, FakeTransport]:
        route = HoldingRoute(None)
        listener = Listener(OneRoute(route))
        idle = accept(listener)
        listener.tick += 2
        finishing, stuck = accept(listener), accept(listener)
        finishing.feed(request(b"a"))
        stuck.feed(request(b"b"))

        def finish() -> None:
            idle.protocol.connection_lost(None)
            route.exchanges[0].respond(200, (), [b"done"])
            finishing.protocol.connection_lost(None)

        asyncio.get_running_loop().call_soon(finish)
        left = await listener.stop(0.01)
        return left, idle, finishing, stuck

    left, idle, finishing, stuck = asyncio.run(scenario())
    assert left == 1
    assert idle.closing
    assert finishing.closing
    assert not finishing.aborted
    assert stuck.aborted


def test_a_client_that_has_just_connected_gets_its_first_answer() -> None:
    async def scenario() -> tuple[FakeTransport, FakeTransport, FakeTransport]:
        listener = Listener(OneRoute(HoldingRoute(echo)))
        old = accept(listener)
        listener.tick += 2
        fresh, silent = accept(listener), accept(listener)

        def send() -> None:
            assert old.closing
            fresh.feed(request(b"a"))
            assert fresh.closing
            for each in (old, fresh, silent):
                each.protocol.connection_lost(None)

        asyncio.get_running_loop().call_soon(send)
        assert await listener.stop(1.0) == 0
        return old, fresh, silent

    old, fresh, silent = asyncio.run(scenario())
    ((status, fields, _),) = responses(fresh.take())
    assert status == 200
    assert fields[b"connection"] == b"close"
    assert not old.take()
    assert not silent.take()


def test_stopping_with_nothing_open_is_immediate() -> None:
    async def scenario() -> int:
        return await Listener(OneRoute(HoldingRoute(echo))).stop(60)

    assert asyncio.run(scenario()) == 0


def test_a_faulty_connection_does_not_end_the_sweeping() -> None:
    async def scenario() -> bool:
        listener: Any = Listener(OneRoute(HoldingRoute(echo)))
        listener.connections.add(Loud())
        with pytest.raises(RuntimeError):
            listener._sweep()
        planned = listener._sweeper is not None and not listener._sweeper.cancelled()
        listener._sweeper.cancel()
        return planned and listener.tick == 1

    assert asyncio.run(scenario())


def test_ten_thousand_connections_are_checked_in_turns_of_the_loop() -> None:
    class Quiet:
        transport: Any = None
        checked = 0

        def check_timeouts(self, tick: int) -> None:
            self.checked += 1

        def is_stalled(self, tick: int, seconds: float) -> bool:
            return True

    async def scenario() -> tuple[list[int], int, list[int]]:
        listener: Any = Listener(OneRoute(HoldingRoute(echo)))
        quiet = [Quiet() for _ in range(10_000)]
        listener.connections.update(quiet)
        listener._sweep()
        # A test that is held up for long must not see the beginning of the next sweep.
        listener._sweeper.cancel()
        gone = next(each for each in quiet if not each.checked)
        was_checked = gone.checked
        listener.connections.discard(gone)
        counts = [sum(each.checked for each in quiet)]
        while counts[-1] < 10_000 - 1:
            await asyncio.sleep(0)
            counts.append(sum(each.checked for each in quiet))
        return counts, listener.stalled, [was_checked, gone.checked]

    counts, stalled, (before, after) = asyncio.run(scenario())
    assert max(later - earlier for earlier, later in pairwise([0, *counts])) <= 256
    # One that went meanwhile is not checked any more.
    assert stalled == 10_000 - 1
    assert before == after == 0


def test_a_sweep_does_not_begin_while_the_last_one_is_under_way() -> None:
    class Quiet:
        transport: Any = None
        checked = 0

        def check_timeouts(self, tick: int) -> None:
            self.checked += 1

        def is_stalled(self, tick: int, seconds: float) -> bool:
            return False

    async def scenario() -> list[int]:
        listener: Any = Listener(OneRoute(HoldingRoute(echo)))
        quiet = [Quiet() for _ in range(1_000)]
        listener.connections.update(quiet)
        for _ in range(3):
            listener._sweep()
            listener._sweeper.cancel()
        for _ in range(8):
            await asyncio.sleep(0)
        first = [each.checked for each in quiet]
        listener._sweep()
        listener._sweeper.cancel()
        for _ in range(8):
            await asyncio.sleep(0)
        return [max(first), min(first), max(each.checked for each in quiet)]

    assert asyncio.run(scenario()) == [1, 1, 2]
