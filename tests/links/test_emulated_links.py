"""The emulated network: round trips and bandwidth near what was set, also after a change; nothing is left behind."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.links.capacity import carried_bits_per_second
from bench.links.network import FAR, NEAR, EmulatedNetwork
from bench.links.settings import LinkSettings

_LENGTH = 8
_PATIENCE = 30.0


def in_own_thread(work: Callable[[], None]) -> None:
    """A thread that enters a namespace stays there."""
    with ThreadPoolExecutor(1) as own_thread:
        own_thread.submit(work).result()


def network(settings: LinkSettings) -> EmulatedNetwork:
    try:
        return EmulatedNetwork(settings)
    except OSError as error:
        pytest.skip(f"no emulated network: {error.strerror}")


@contextmanager
def exchanges(host: str = FAR) -> Iterator[Callable[[int], float]]:
    """A function that sends so many bytes, waits for one back, and returns the seconds."""
    with socket.create_server((NEAR, 0)) as listening:
        thread = threading.Thread(target=_answer, args=(listening,))
        thread.start()
        with socket.create_connection((host, listening.getsockname()[1]), timeout=_PATIENCE) as caller:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def exchange(size: int) -> float:
                began = time.monotonic()
                caller.sendall(size.to_bytes(_LENGTH, "big") + bytes(size))
                assert caller.recv(1)
                return time.monotonic() - began

            yield exchange
        thread.join(_PATIENCE)


def _answer(listening: socket.socket) -> None:
    accepted, _ = listening.accept()
    with accepted:
        accepted.settimeout(_PATIENCE)
        while head := accepted.recv(_LENGTH, socket.MSG_WAITALL):
            left = int.from_bytes(head, "big")
            while left:
                left -= len(accepted.recv(min(left, 1 << 16)))
            accepted.sendall(b"x")


def soon(measure: Callable[[], float], least: float, most: float) -> None:
    """Never below ``least``; on a busy machine some are far above, but not all."""
    ends = time.monotonic() + _PATIENCE
    while True:
        found = measure()
        assert found >= least
        if found <= most:
            return
        assert time.monotonic() < ends, f"{found} instead of at most {most}"


def test_round_trips_and_their_changes() -> None:
    def work() -> None:
        with network(LinkSettings(0.01)) as link, exchanges() as exchange:
            soon(lambda: exchange(1), 0.02, 0.03)
            link.set(LinkSettings(0.03))
            soon(lambda: exchange(1), 0.06, 0.09)
            link.set(LinkSettings(0.001, jitter=0.02))
            assert max(exchange(1) for _ in range(20)) > 0.005
            link.set(LinkSettings(0.0))
            soon(lambda: exchange(1), 0.0, 0.01)

    in_own_thread(work)


def test_bandwidth_and_its_changes() -> None:
    """The bytes of a request cannot be there sooner than the bandwidth allows; a share of it goes to headers."""

    def work() -> None:
        with network(LinkSettings(0.001, 8e6)) as link, exchanges() as exchange:
            soon(lambda: exchange(250_000), 0.25, 0.4)
            link.set(LinkSettings(0.001, 80e6))
            soon(lambda: exchange(2_500_000), 0.25, 0.4)

    in_own_thread(work)


def test_the_most_that_is_carried_is_measured_without_bounds() -> None:
    def work() -> None:
        with network(LinkSettings(0.05, 1e6)) as link:
            assert carried_bits_per_second(link) > 10e6
            assert link.settings == LinkSettings(0.05, 1e6)

    in_own_thread(work)


def test_near_has_no_link() -> None:
    def work() -> None:
        with network(LinkSettings(0.2)), exchanges(NEAR) as exchange:
            soon(lambda: exchange(1), 0.0, 0.1)

    in_own_thread(work)


def test_nothing_is_left_behind() -> None:
    before = os.readlink("/proc/self/ns/net")

    def work() -> None:
        pids = []

        def fail_inside() -> None:
            with network(LinkSettings()) as link:
                pids.append(link.carrier_pid)
                raise RuntimeError("in the block")

        with pytest.raises(RuntimeError, match="in the block"):
            fail_inside()
        assert not Path(f"/proc/{pids[0]}").exists()

    in_own_thread(work)
    assert os.readlink("/proc/self/ns/net") == before
