"""Round trips by the kernel: of whole and short structures, of real connections, and of what has none."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from offline import Answer, OfflineLoop, offline, turns

from isochrone.clock import SECOND, now_ns
from isochrone.gateway.upstream import round_trips
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.gateway.upstream.connections import Connections
from isochrone.settings.wire_limits import WireLimits

HEAD = b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
UNMEASURED = (0, 0xFFFFFFFF)
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's figures are read on Linux alone")

Run = Callable[[Coroutine[Any, Any, None]], None]
MICROSECONDS = st.integers(0, 0xFFFFFFFF) | st.sampled_from(UNMEASURED)


def tcp_info(mean: int, least: int, length: int = 232) -> bytes:
    """As linux/tcp.h orders it: 8 bytes, 24 numbers of 32 bits, 4 of 64 and further ones; tcpi_rtt is the 16th and
    tcpi_min_rtt the 4th after those of 64."""
    numbers = [7] * 24
    numbers[15] = mean
    info = bytes([1] * 8) + struct.pack("=24I4Q4I", *numbers, *[9] * 4, 5, 5, 5, least)
    return (info + bytes([3] * 200))[:length]


@given(MICROSECONDS, MICROSECONDS, st.integers(0, 300))
def test_the_least_counts_or_else_the_mean_or_nothing(mean: int, least: int, length: int) -> None:
    found = round_trips.of_tcp_info(tcp_info(mean, least, length))
    if length >= 152 and least not in UNMEASURED:
        assert found == least / 1e6
    elif length >= 72 and mean not in UNMEASURED:
        assert found == mean / 1e6
    else:
        assert found is None


@given(st.binary(max_size=300))
def test_any_bytes_are_a_figure_or_none(info: bytes) -> None:
    found = round_trips.of_tcp_info(info)
    assert found is None or 0 < found < 4295


@on_linux
def test_the_offsets_are_those_of_this_kernel() -> None:
    """Over loopback both figures are short, and the mean is not below the least."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            for _ in range(5):
                near.sendall(b"there")
                far.recv(16)
                far.sendall(b"and back")
                near.recv(16)
            info = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            least, mean = round_trips.of_tcp_info(info), round_trips.of_tcp_info(info[:148])
            assert least is not None
            assert mean is not None
            assert 0 < least <= mean < 1
            # Of the whole structure of this kernel; what is read is as much of it as is needed.
            assert round_trips.of_socket(near) == least


def test_what_is_no_tcp_connection_has_none() -> None:
    assert round_trips.of_socket(None) is None
    one, other = socket.socketpair()
    with one, other:
        assert round_trips.of_socket(one) is None
    with socket.socket() as unconnected:
        assert round_trips.of_socket(unconnected) is None
    assert round_trips.of_socket(unconnected) is None, "a closed one"


@on_linux
@LOOPS
def test_a_transport_has_one_until_it_is_closed(run: Run) -> None:
    async def connect() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)
            assert round_trips.of_socket(transport.get_extra_info("socket")) is not None
            transport.abort()
            await turns()
            assert round_trips.of_socket(transport.get_extra_info("socket")) is None

    run(connect())


def give_figure(transport: Any, least: int) -> None:
    """Let a transport have a socket of a round trip of so many microseconds."""

    class Connected:
        family = socket.AF_INET

        def getsockopt(self, level: int, option: int, length: int) -> bytes:
            return tcp_info(0, least, length)

    transport.get_extra_info = {"socket": Connected()}.get


async def renewed(loop: OfflineLoop) -> None:
    """Let what the last page began come to its end."""
    loop.stop_clock()
    await turns()
    loop.pass_time(11.0)
    await turns()


async def ask(connections: Connections, loop: OfflineLoop, *transports: int) -> None:
    """Requests at the same time, each on the next of these connections."""
    answers = [Answer() for _ in transports]
    sent = [connections.send(HEAD, (), answer) for answer in answers]
    await turns()
    for number, answer, one in zip(transports, answers, sent, strict=True):
        loop.transports[number].protocol.data_received(OK)
        assert answer.is_complete
        connections.release(one)


@on_linux
def test_the_newest_connection_counts() -> None:
    async def run(loop: OfflineLoop) -> None:
        connections = Connections(Upstream("worker", 8000, 8001), WireLimits())
        assert connections.round_trip(now_ns()) is None
        await ask(connections, loop, 0, 1)
        give_figure(loop.transports[0], 1000)
        assert connections.round_trip(now_ns()) is None, "the newest one has no figure"
        give_figure(loop.transports[1], 2000)
        assert connections.round_trip(now_ns()) == 0.002
        await renewed(loop)
        assert len(loop.transports) == 2, "connections are renewed although they are new"

    offline(run)


@on_linux
def test_an_old_connection_is_replaced_by_a_new_one_without_a_request() -> None:
    async def run(loop: OfflineLoop) -> None:
        connections = Connections(Upstream("worker", 8000, 8001), WireLimits())
        await ask(connections, loop, 0, 1)
        give_figure(loop.transports[1], 2000)
        later = now_ns() + 61 * SECOND
        assert connections.round_trip(later) == connections.round_trip(later) == 0.002
        await renewed(loop)
        assert len(loop.transports) == 3, "one page is enough, and two begin it once"
        assert connections.open == 2, "the one that was idle for longest is closed"
        give_figure(loop.transports[2], 9000)
        assert connections.round_trip(now_ns()) == 0.009
        await ask(connections, loop, 1)
        await ask(connections, loop, 1, 2)

    offline(run)


@on_linux
def test_a_connection_that_is_lost_has_no_figure_and_the_next_page_opens_another() -> None:
    async def run(loop: OfflineLoop) -> None:
        connections = Connections(Upstream("worker", 8000, 8001), WireLimits())
        await ask(connections, loop, 0, 1)
        loop.transports[1].protocol.connection_lost(None)
        assert connections.round_trip(now_ns()) is None
        await renewed(loop)
        give_figure(loop.transports[2], 3000)
        assert connections.round_trip(now_ns()) == 0.003
        assert connections.open == 2, "the only one that is warm stays"
        await ask(connections, loop, 0)

    offline(run)


def test_nothing_is_taken_from_requests_for_the_sake_of_a_figure() -> None:
    async def run(loop: OfflineLoop) -> None:
        connections = Connections(Upstream("worker", 8000, 8001), WireLimits(), max_connections=1)
        await ask(connections, loop, 0)
        later = now_ns() + 61 * SECOND
        loop.gate = asyncio.Event()
        connections.round_trip(later)
        await renewed(loop)
        busy = Answer()
        connections.send(HEAD, (), busy)
        loop.gate.set()
        await turns()
        assert connections.open == 1, "the only one that it may have is in use"
        connections.round_trip(later)
        await renewed(loop)
        assert len(loop.transports) == 1, "there is no room for another one"
        loop.transports[0].protocol.data_received(OK)
        assert busy.is_complete

    offline(run)


def test_a_worker_that_accepts_no_connection_is_the_health_checks_affair() -> None:
    async def run(loop: OfflineLoop) -> None:
        connections = Connections(Upstream("worker", 8000, 8001), WireLimits())
        await ask(connections, loop, 0)
        later = now_ns() + 61 * SECOND
        loop.refuses = True
        connections.round_trip(later)
        await renewed(loop)
        assert connections.open == 1
        loop.refuses = False
        connections.round_trip(later)
        await renewed(loop)
        assert len(loop.transports) == 2, "the next page tries again"
        connections.close()
        assert connections.round_trip(later) is None

    offline(run)
