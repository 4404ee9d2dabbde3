"""The local engine with real, small processes: their ends, their logs, and the end of the supervisor itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.engines.base import Exit
from isochrone.engines.local.engine import LocalEngine
from isochrone.engines.local.log_files import LogFiles
from isochrone.engines.local.memory_kills import MemoryKills

SECONDS = 100.0
SLEEPS = "import time; print('here', flush=True); time.sleep(600)"
#: Says so once it can no longer be ended by SIGTERM.
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"


def program(code: str, name: str = "w") -> ProcessSpec:
    return ProcessSpec(name, "worker", ("-c", code), "cpu")


async def until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < ends
        await asyncio.sleep(0.01)


class Kept:
    """An engine, its notifications and its logs."""

    def __init__(self, directory: Path, kills: MemoryKills | None = None) -> None:
        self.logs = LogFiles(directory)
        self.engine = LocalEngine(self.logs, (sys.executable,), memory_kills=kills)
        self.ends: list[Exit] = []
        self.engine.on_exit(self.ends.append)

    def log(self, name: str = "w") -> str:
        path = self.logs.path(name)
        return path.read_text() if path.exists() else ""

    @property
    def pid(self) -> int:
        return self.engine.running()["w"].pid


@contextlib.asynccontextmanager
async def kept(directory: Path, kills: MemoryKills | None = None) -> AsyncIterator[Kept]:
    made = Kept(directory, kills)
    try:
        yield made
    finally:
        for name in list(made.engine.running()):
            await made.engine.stop(name, 0.0)
        await made.engine.close()


def test_a_process_runs_until_it_is_stopped(tmp_path: Path) -> None:
    async def run() -> None:
        async with kept(tmp_path) as it:
            await it.engine.start(program(SLEEPS))
            await until(lambda: "here" in it.log())
            running = it.engine.running()["w"]
            assert psutil.Process(running.pid).is_running()
            assert (running.restarts, running.stopping, running.spec) == (0, False, program(SLEEPS))
            # Ctrl-C of the supervisor's terminal does not reach it.
            assert os.getsid(running.pid) == running.pid
            with pytest.raises(ValueError, match="runs already"):
                await it.engine.start(program(SLEEPS))
            await it.engine.stop("w", SECONDS)
            assert it.engine.running() == {}
            assert it.ends == [Exit(program(SLEEPS), running.pid, -signal.SIGTERM, None)]
            assert not psutil.pid_exists(running.pid)
            await it.engine.stop("w", SECONDS)

    asyncio.run(run())


def test_one_that_dies_is_started_again_with_longer_and_longer_pauses(tmp_path: Path) -> None:
    async def run() -> None:
        async with kept(tmp_path) as it:
            await it.engine.start(program("print('once more'); raise SystemExit(3)"))
            await until(lambda: len(it.ends) >= 4)
            assert [each.status for each in it.ends[:4]] == [3, 3, 3, 3]
            assert [each.again_in for each in it.ends[:4]] == [0.1, 0.2, 0.4, 0.8]
            assert it.ends[0].how == "ended with status 3"
            waiting = it.engine.running()["w"]
            assert waiting.restarts >= 3
            # All lives of one process are in one log.
            assert it.log().count("once more") >= 4
            # One that waits to be started again can be stopped too.
            await it.engine.stop("w", SECONDS)
            assert it.engine.running() == {}

    asyncio.run(run())


def test_one_that_is_killed_comes_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with kept(tmp_path) as it:
            await it.engine.start(program(SLEEPS))
            first = it.pid
            os.kill(first, signal.SIGKILL)
            await until(lambda: it.ends)
            assert it.ends[0].how == "was ended by signal 9"
            await until(lambda: it.pid not in (0, first))
            assert it.engine.running()["w"].restarts == 1

    asyncio.run(run())


def test_one_that_the_kernel_ends_for_lack_of_memory_is_said_to_be(tmp_path: Path) -> None:
    async def run() -> None:
        vmstat = tmp_path / "vmstat"
        vmstat.write_text("pgfault 17\noom_kill 3\n")
        kills = MemoryKills(vmstat)
        async with kept(tmp_path / "logs", kills) as it:
            await it.engine.start(program(SLEEPS))
            vmstat.write_text("pgfault 18\noom_kill 4\n")
            os.kill(it.pid, signal.SIGKILL)
            await until(lambda: it.ends)
            # Long ago: it is not what ended the next one.
            kills.look()
            kills.look()
            await until(lambda: it.engine.running()["w"].pid)
            os.kill(it.pid, signal.SIGKILL)
            await until(lambda: len(it.ends) > 1)
        hows = [each.how for each in it.ends[:2]]
        assert hows == ["was ended by signal 9 when the kernel ran out of memory", "was ended by signal 9"]

    asyncio.run(run())


def test_memory_kills_are_unknown_without_the_counter(tmp_path: Path) -> None:
    kills = MemoryKills(tmp_path / "none")
    kills.look()
    assert not kills.is_recent


def test_one_that_does_not_listen_to_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    async def run() -> None:
        async with kept(tmp_path) as it:
            await it.engine.start(program(STUBBORN))
            await until(lambda: "here" in it.log())
            await it.engine.stop("w", 0.2)
            assert it.ends[0].status == -signal.SIGKILL
            assert it.ends[0].again_in is None

    asyncio.run(run())


def test_a_second_stop_with_less_patience_hurries_the_first(tmp_path: Path) -> None:
    async def run() -> None:
        async with kept(tmp_path) as it:
            await it.engine.start(program(STUBBORN))
            await until(lambda: "here" in it.log())
            patient = asyncio.create_task(it.engine.stop("w", 600.0))
            await until(lambda: it.engine.running()["w"].stopping)
            await it.engine.stop("w", 0.0)
            await patient
            assert it.engine.running() == {}

    asyncio.run(run())


def test_each_start_has_a_log_of_its_own_and_the_last_one_is_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with kept(tmp_path) as it:
            for word in ("first", "second"):
                spec = program(f"import time; print('{word}', flush=True); time.sleep(600)")
                await it.engine.start(spec)
                await until(lambda: it.log())
                await it.engine.stop("w", SECONDS)
            assert it.log() == "second\n"
            assert (tmp_path / "w.log.1").read_text() == "first\n"

    asyncio.run(run())


def test_a_log_that_cannot_be_written_stops_no_process(tmp_path: Path) -> None:
    async def run() -> None:
        async with kept(tmp_path / "logs") as it:
            (tmp_path / "logs" / "w.log").mkdir()
            await it.engine.start(program(f"open({str(tmp_path / 'sign')!r}, 'w').close(); {SLEEPS}"))
            await until((tmp_path / "sign").exists)
            assert it.pid

    asyncio.run(run())


_SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.engines.local.engine import LocalEngine
from isochrone.engines.local.log_files import LogFiles

async def run():
    engine = LocalEngine(LogFiles(Path(sys.argv[1])), (sys.executable,))
    for number in range(3):
        await engine.start(ProcessSpec(f"w{number}", "worker", ("-c", sys.argv[2]), "cpu"))
    print(*(each.pid for each in engine.running().values()), flush=True)
    await asyncio.sleep(600)

asyncio.run(run())
"""


def test_a_supervisor_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SUPERVISOR, str(tmp_path), SLEEPS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        try:
            assert supervisor.stdout is not None
            pids = [int(word) for word in supervisor.stdout.readline().split()]
            assert len(pids) == 3
            assert all(psutil.pid_exists(pid) for pid in pids)
        finally:
            supervisor.kill()
    ends = time.monotonic() + SECONDS
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < ends, "processes outlive their supervisor"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_one_whose_supervisor_is_gone_already_does_not_begin(tmp_path: Path) -> None:
    program = Path(__file__).parents[3] / "src/isochrone/engines/local/parent_death.py"
    sign = tmp_path / "sign"
    words = [sys.executable, str(program), "1", sys.executable, "-c", f"open({str(sign)!r}, 'w')"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 1
    assert "the supervisor has ended" in ended.stderr
    assert not sign.exists()
