"""``isochrone what-if`` without a fleet: a saved situation, tables, JSON, errors; the process of a controller."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.control.what_if.situation import Situation, read_situation
from isochrone.errors import Internal, InvalidArgument, NotFound, QueueFull, Unavailable
from isochrone.simulate.what_if import child
from isochrone.simulate.what_if.process import SimulatorProcess
from isochrone.simulate.what_if.task import WhatIfFailure, WhatIfTask

PLANT = Path(__file__).parents[2] / "examples" / "situations" / "plant.json"


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["what-if", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def plant() -> Situation:
    return read_situation(PLANT.read_bytes(), str(PLANT))


async def read_plant() -> Situation:
    return plant()


def test_an_answer_is_shown_as_tables() -> None:
    status, said = run("lose=gpu-1,gpu-2", "load=3", "--situation", str(PLANT), "--seconds", "0.5")
    assert status == 0, said
    for part in (
        "lose=gpu-1,gpu-2 load=3: the fleet breaks",
        "detector",
        "today",
        "then",
        "lost",
        "gpu-3",
        "0.5 simulated",
    ):
        assert part in said


def test_json_is_the_same_twice() -> None:
    words = ("load=2", "policy=p2c", "--situation", str(PLANT), "--seconds", "0.3", "--seed", "7", "--json")
    (status, said), again = run(*words), run(*words)
    assert (status, said) == again
    assert status == 0
    found = json.loads(said)
    assert (found["questions"], found["seed"], found["simulated_seconds"]) == (["load=2", "policy=p2c"], 7, 0.3)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "expected lose=WORKER"),
        (("--situation", str(PLANT)), "expected lose=WORKER"),
        (("load=2", "--situation", str(PLANT), "--save-situation", "x.json"), "--save-situation"),
        (("lose=gpu-9", "--situation", str(PLANT)), "gpu-1"),
        (("load=2", "--situation", "no-such-file.json"), "no-such-file.json"),
        (("load=2", "--api", "http://127.0.0.1:9"), "no controller"),
    ],
)
def test_errors_say_what_is_expected(words: tuple[str, ...], expected: str) -> None:
    status, said = run(*words)
    assert status == 1
    assert expected in said


def test_a_controller_asks_another_process_and_a_few_questions_wait() -> None:
    async def ask() -> None:
        simulator = SimulatorProcess(budget=30.0, deadline=60.0)
        first = asyncio.ensure_future(simulator.answer(read_plant, ["load=1"], 1, 0.1))
        others = [asyncio.ensure_future(simulator.answer(read_plant, ["lose=nobody"])) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="try again"):
            await simulator.answer(read_plant, ["load=1"])
        assert (await first).simulated_seconds == 0.1
        with pytest.raises(InvalidArgument, match="given 'nobody'"):
            await others[0]
        # Callers that give up, while they wait or while their process runs, leave nothing behind.
        for other in others[1:]:
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other
        assert not simulator.is_busy

    asyncio.run(ask())


def test_only_a_question_whose_turn_has_come_reads_the_fleet() -> None:
    readings: list[str] = []

    async def read() -> Situation:
        readings.append("read")
        await asyncio.Event().wait()
        raise AssertionError

    async def ask() -> None:
        simulator = SimulatorProcess()
        with pytest.raises(InvalidArgument, match="POOL:WORKERS"):
            await simulator.answer(read, ["add=gpu:001000000000"])
        assert not readings
        waiting = [asyncio.ensure_future(simulator.answer(read, ["load=1"])) for _ in range(4)]
        await asyncio.sleep(0.01)
        with pytest.raises(QueueFull):
            await simulator.answer(read, ["load=1"])
        assert readings == ["read"]
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        assert not simulator.is_busy

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_a_loop_that_ends_leaves_no_process_behind() -> None:
    """It cancels everything at once, the future of the thread too."""

    async def read() -> Situation:
        await asyncio.Event().wait()
        raise AssertionError

    async def ask() -> None:
        asking.append(asyncio.ensure_future(SimulatorProcess().answer(read, ["load=1"])))
        for _ in range(6_000):
            if children():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("no process was started")

    def children() -> list[psutil.Process]:
        return [each for each in psutil.Process().children() if "isochrone.simulate.what_if.child" in each.cmdline()]

    asking: list[asyncio.Future[object]] = []
    asyncio.run(ask())
    assert asking[0].cancelled()
    assert not children()


def test_a_fleet_that_cannot_be_read_is_an_error_and_leaves_no_process_behind() -> None:
    async def read() -> Situation:
        raise NotFound("no fleet.yaml has been applied yet")

    async def ask() -> None:
        simulator = SimulatorProcess()
        with pytest.raises(NotFound, match="no fleet"):
            await simulator.answer(read, ["load=1"])
        assert not simulator.is_busy

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_the_budget_begins_when_the_question_comes_and_a_late_process_still_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda: 100.0))

    def task(began: float) -> WhatIfTask:
        return WhatIfTask(plant(), ("load=1",), 1, None, 4.0, 15.0, began)

    in_time, late = child._budget(task(99.0)), child._budget(task(91.0))
    assert (in_time.seconds, in_time.longest) == (3.0, 13.0)
    assert (late.seconds, late.longest) == (0.5, 5.0)


def test_a_simulation_that_takes_too_much_memory_is_an_error() -> None:
    """In a process of its own: its limit holds for all that runs in it."""
    script = (
        "import sys; from isochrone.simulate.what_if import child\n"
        "child.answer = lambda *_: bytearray(2 * child.MOST_MEMORY)\n"
        "child.main()\n"
        "sys.stderr.write(open('/proc/self/oom_score_adj').read())"
    )
    task = WhatIfTask(plant(), ("load=1",), 1, 0.1, 2.5, 60.0)
    ran = subprocess.run(
        (sys.executable, "-c", script), input=msgspec.json.encode(task), capture_output=True, timeout=120, check=True
    )
    failure = msgspec.json.decode(ran.stdout, type=WhatIfFailure)
    assert "needs more than 1024 MiB of memory" in failure.error
    assert not failure.is_callers
    assert ran.stderr.strip() == b"1000"


def test_a_simulation_that_is_late_or_fails_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(simulator: SimulatorProcess) -> None:
        await simulator.answer(read_plant, ["load=1"])

    with pytest.raises(Unavailable, match="took longer"):
        asyncio.run(ask(SimulatorProcess(deadline=0.01)))
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(Internal, match="status 1"):
        asyncio.run(ask(SimulatorProcess()))
