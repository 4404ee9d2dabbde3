"""Loads that end their worker's process: tried once more, alone, on one worker; then refused, with advice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from isochrone.clock import SECOND
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.workers.control import ControlFailed, ServedState
from isochrone.control.workers.driver import WorkerDriver
from isochrone.control.workers.load_crashes import Effect, LoadCrashes, effect
from isochrone.control.workers.loads import Call

BAD, GOOD = Effect("bad", frozenset("2")), Effect("good", frozenset("1"))


def test_one_death_makes_a_suspect_and_the_second_alone_condemns() -> None:
    crashes = LoadCrashes()
    crashes.died(BAD, "cpu-1", False, 0)
    crashes.died(GOOD, "cpu-1", False, 0)
    assert crashes.is_suspect(BAD, 1)
    assert crashes.rejection(BAD, 1) == ""
    crashes.survived(GOOD, 1)
    assert not crashes.is_suspect(GOOD, 1)
    assert crashes.begin_retry(BAD, 1)
    assert not crashes.begin_retry(BAD, 1)  # another worker tries it already
    crashes.died(BAD, "cpu-1", True, 2)
    crashes.end_retry(BAD)
    assert crashes.rejection(BAD, 3) == (
        "version 2 of 'bad' ended the process of worker cpu-1 twice; to keep a crash of a Python or PyTorch model out "
        'of the worker, set parameters { key: "isolation" value: { string_value: "process" } } in its config.pbtxt'
    )
    assert crashes.rejection(Effect("bad", frozenset("3")), 3) == ""
    assert crashes.rejection(BAD, 601 * SECOND) == ""
    assert crashes.is_suspect(BAD, 601 * SECOND)


def test_only_the_version_that_ends_processes_is_named_though_a_restarted_process_loads_others_with_it() -> None:
    crashes = LoadCrashes()
    crashes.died(Effect("m", frozenset("7")), "cpu-1", False, 0)
    # Started again, it has nothing.
    again = Effect("m", frozenset("127"))
    assert crashes.is_suspect(again, 1)
    assert not crashes.is_suspect(Effect("m", frozenset("12")), 1)
    assert crashes.begin_retry(again, 1)
    assert not crashes.begin_retry(Effect("m", frozenset("7")), 1)
    crashes.died(again, "cpu-2", True, 2)
    crashes.end_retry(again)
    assert crashes.rejection(again, 3).startswith("version 7 of 'm' ended the process of workers cpu-1, cpu-2; ")
    assert crashes.rejection(Effect("m", frozenset("12")), 3) == ""


def test_an_unload_is_a_suspect_for_the_versions_it_unloads_alone() -> None:
    crashes = LoadCrashes()
    first = effect(Call("m", frozenset("23")), frozenset("123"))
    crashes.died(first, "cpu-1", False, 0)
    assert crashes.is_suspect(first, 1)
    later = effect(Call("m", frozenset("34")), frozenset("234"))
    assert not crashes.is_suspect(later, 1)
    crashes.died(later, "cpu-2", False, 2)
    assert crashes.rejection(later, 3) == ""
    assert crashes.begin_retry(later, 3)
    crashes.died(later, "cpu-3", True, 4)
    assert crashes.rejection(later, 5).startswith("an unload of version 2 of 'm' ended the process of workers cpu-2, ")
    assert crashes.rejection(first, 5) == ""


class CrashingWorkers:
    """Workers that end when they load ``bad``, and come back empty."""

    def __init__(self) -> None:
        self.deaths = 0

    def start(self, name: str, crashes: LoadCrashes) -> tuple[_Worker, WorkerDriver]:
        worker = _Worker(self)
        record = WorkerRecord(name, "127.0.0.1", 1, 1, pool="cpu")
        return worker, WorkerDriver(record, lambda: None, control=worker, crashes=crashes)


class _Worker:
    def __init__(self, fleet: CrashingWorkers) -> None:
        self._fleet = fleet
        self.serving: dict[str, frozenset[str]] = {}
        self.is_alive = True
        #: Somebody ends its process during the next call.
        self.is_killed = False

    async def index(self) -> dict[str, dict[str, ServedState]]:
        await asyncio.sleep(0)
        if not self.is_alive:
            raise ControlFailed("no answer: ConnectError")
        return {model: {each: ServedState("READY", "d") for each in found} for model, found in self.serving.items()}

    async def serve(self, model: str, versions: Sequence[str], seconds: float) -> None:
        await asyncio.sleep(0.01)
        if not self.is_alive:
            raise ControlFailed("no answer: ReadError", cut=True)
        if model == "bad" or self.is_killed:
            self.is_alive = False
            self._fleet.deaths += 1
            raise ControlFailed("no answer: ReadError", cut=True)
        self.serving[model] = frozenset(versions)

    async def config_digest(self, model: str, version: str) -> str:
        raise AssertionError("a worker of our own tells its digests")

    async def close(self) -> None: ...


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_the_workers_of_a_controller_lose_one_process_more_and_serve_the_rest() -> None:
    async def scene() -> None:
        fleet, crashes = CrashingWorkers(), LoadCrashes()
        desired = {"bad": frozenset("2"), "good": frozenset("1"), "fine": frozenset("1")}

        async def life(name: str) -> WorkerDriver | None:
            """From a start to the death, or to all that it can serve; the watch of a process that stays."""
            worker, driver = fleet.start(name, crashes)
            driver.set_desired(desired, ["bad", "good", "fine"], {}, {})
            await until(lambda: not worker.is_alive or "bad" in driver.observed.failures)
            if worker.is_alive:
                await until(lambda: set(worker.serving) == {"good", "fine"})
                return driver
            # The connections of all its calls end with it.
            await until(lambda: not driver._calls)
            await driver.stop()
            return None

        async def lives(name: str) -> WorkerDriver:
            """Started again whenever it dies, as by a supervisor."""
            while (driver := await life(name)) is None:
                pass
            return driver

        drivers = await asyncio.gather(*(lives(f"w{number}") for number in range(4)))
        # All of them once, since nothing was known; then one of them, to be sure.
        assert fleet.deaths == 5
        for driver in drivers:
            failure = driver.observed.failures["bad"]
            assert (failure.versions, "isolation" in failure.reason) == (frozenset("2"), True)
            await driver.stop()

    asyncio.run(scene())


def test_workers_that_are_killed_while_they_drain_in_two_rollouts_stop_no_other_worker_from_unloading() -> None:
    async def scene() -> None:
        fleet, crashes = CrashingWorkers(), LoadCrashes()
        for number, (name, version) in enumerate((("w1", 2), ("w2", 3), ("w3", 3)), 1):
            worker, driver = fleet.start(name, crashes)
            worker.serving = {"m": frozenset(map(str, (version - 1, version, version + 1)))}
            worker.is_killed = name != "w3"
            desired = {"m": frozenset(map(str, (version, version + 1)))}
            driver.set_desired(desired, ["m"], {}, {})
            await until(lambda: not worker.is_alive or worker.serving == desired or driver.observed.failures)  # noqa: B023
            await until(lambda: not driver._calls)  # noqa: B023
            await driver.stop()
            assert fleet.deaths == min(number, 2)
        assert worker.serving == desired

    asyncio.run(scene())


def test_a_retry_that_is_cancelled_before_its_first_step_leaves_the_suspect_to_others() -> None:
    async def scene() -> None:
        crashes = LoadCrashes()
        suspect = Effect("m", frozenset("1"))
        crashes.died(suspect, "w0", False, time.monotonic_ns())
        worker = _Worker(CrashingWorkers())
        worker.serving = {"n": frozenset("1")}
        stopped: list[asyncio.Task[None]] = []

        def stop() -> None:
            # It runs between the look that found something and the first step of the call that follows from it.
            stopped.append(asyncio.ensure_future(driver.stop()))

        record = WorkerRecord("w1", "127.0.0.1", 1, 1, pool="cpu")
        driver = WorkerDriver(record, stop, control=worker, crashes=crashes)
        driver.set_desired({"m": frozenset("1"), "n": frozenset("1")}, ["m", "n"], {}, {})
        await until(lambda: stopped)
        await stopped[0]
        assert "m" not in worker.serving
        assert crashes.begin_retry(suspect, time.monotonic_ns())

    asyncio.run(scene())
