"""examples/robot_fleet: the motion, the controllers, the link and the bench's report, without the machine's timing."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from bench.control_loop.report import HEADER, phase_report
from documented import EXAMPLES

PERIOD = 0.02


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES / "robot_fleet"), *sys.path])


def balanced(force: Any, seed: int, seconds: float = 10.0) -> tuple[int, float]:
    """Falls and mean squared angle of a pole whose controller acts 5 ms after each tick."""
    import cart_pole

    robot = cart_pole.CartPole(seed, 0.0)
    for tick in range(round(seconds / PERIOD)):
        robot.advance(tick * PERIOD)
        robot.push(force(robot.state.copy()), tick * PERIOD + 0.005)
    falls, squares, steps = robot.take_quality()
    assert robot.take_quality() == (0, 0.0, 0)
    return falls, squares / steps


def test_the_remote_controller_is_better_than_the_local_one_and_both_better_than_none() -> None:
    import cart_pole

    gains = cart_pole.optimal_gains(PERIOD)
    for seed in range(3):
        good, coarse, none = (
            balanced(force, seed) for force in (lambda state: gains @ state, cart_pole.local_force, lambda _: 0.0)
        )
        assert good[0] == coarse[0] == 0
        assert none[0] > 5
        assert good[1] < coarse[1] < none[1]
        assert balanced(cart_pole.local_force, seed) == coarse


def test_the_model_is_the_regulator(tmp_path: Path) -> None:
    import cart_pole
    import controller_model

    controller_model.build(tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "balance" / "1" / "model.onnx")
    states = np.float32([[0.1, 0, 0.05, 0], [0, 0, 3, 0]])
    (forces,) = session.run(["force"], {"state": states})
    assert forces[0, 0] == pytest.approx(float(cart_pole.optimal_gains(PERIOD) @ states[0]), rel=1e-5)
    assert forces[1, 0] == cart_pole.MOST_FORCE


def test_the_link_keeps_the_order_and_delivers_what_was_sent_while_it_stalled() -> None:
    from link import Link

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server, Link("127.0.0.1", server.sockets[0].getsockname()[1]) as link:
            reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
            link.slow(0.001, 0.003)
            for number in range(20):
                writer.write(b"%02d" % number)
                await asyncio.sleep(0.001)
            assert await reader.readexactly(40) == b"".join(b"%02d" % number for number in range(20))
            link.stall()
            writer.write(b"later")
            late_reader, late_writer = await asyncio.open_connection("127.0.0.1", link.port)
            late_writer.write(b"new")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readexactly(5), 0.05)
            link.good()
            assert await reader.readexactly(5) == b"later"
            assert await late_reader.readexactly(3) == b"new"
            link.cut()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            for each in (writer, late_writer):
                each.close()
            link.good()
            reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
            writer.write(b"back")
            assert await reader.readexactly(4) == b"back"
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()

    asyncio.run(main())


def test_a_phase_is_the_sum_of_its_processes() -> None:
    counts = {"sources.remote": 30, "sources.local": 60, "misses.overrun": 2, "misses.skipped": 4, "requests": 50}
    process = {"due": 100, "counts": counts, "without_action": 0, "cpu_seconds": 0.5}
    found = phase_report(
        "returned",
        [{**process, "first_remote_seconds": [0.1, None]}, {**process, "first_remote_seconds": [0.3, 0.2]}],
    )
    assert (found.due, found.remote, found.local, found.misses) == (200, 60, 120, 12)
    assert (found.remote_median, found.remote_longest, found.remote_never) == (0.2, 0.3, 1)
    assert found.row() == ("| returned | 200 | 30.0% | 60.0% | 0.0% | 2.0% | 4.0% | 6.0% | 0 | 100 | 200 (0.3 s) | 1 |")
    assert HEADER.splitlines()[0].count("|") == found.row().count("|")
