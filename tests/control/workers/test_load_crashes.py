"""Loads that end their worker's process: tried once more, alone, on one worker; then refused, with advice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from isochrone.clock import SECOND
from isochrone.control.state.records import WorkerRecord
from isochrone.control.workers.control import ControlFailed, ServedState
from isochrone.control.workers.driver import WorkerWatch
from isochrone.control.workers.load_crashes import LoadCrashes
from isochrone.control.workers.loads import Call

BAD, GOOD = Call("bad", frozenset("2")), Call("good", frozenset("1"))


def test_one_death_makes_a_suspect_and_the_second_alone_condemns() -> None:
    crashes = LoadCrashes()
    crashes.died(BAD, "cpu-1", False, 0)
    crashes.died(GOOD, "cpu-1", False, 0)
    assert crashes.is_suspect(BAD, 1)
    assert crashes.refusal(BAD, 1) == ""
    crashes.survived(GOOD, 1)
    assert not crashes.is_suspect(GOOD, 1)
    assert crashes.try_alone(BAD, 1)
    assert not crashes.try_alone(BAD, 1)  # another worker tries it already
    crashes.died(BAD, "cpu-1", True, 2)
    crashes.trial_over(BAD)
    assert crashes.refusal(BAD, 3) == (
        "version 2 of 'bad' ended the process of worker cpu-1 twice; to keep a crash of a Python model out of the "
        'worker, set parameters { key: "isolation" value: { string_value: "process" } } in its config.pbtxt'
    )
    assert crashes.refusal(Call("bad", frozenset("3")), 3) == ""
    assert crashes.refusal(BAD, 601 * SECOND) == ""
    assert crashes.is_suspect(BAD, 601 * SECOND)


def test_only_the_version_that_ends_processes_is_named_though_a_restarted_process_loads_others_with_it() -> None:
    crashes = LoadCrashes()
    crashes.died(Call("m", frozenset("7")), "cpu-1", False, 0)
    # Started again, it has nothing.
    again = Call("m", frozenset("127"))
    assert crashes.is_suspect(again, 1)
    assert not crashes.is_suspect(Call("m", frozenset("12")), 1)
    assert crashes.try_alone(again, 1)
    assert not crashes.try_alone(Call("m", frozenset("7")), 1)
    crashes.died(again, "cpu-2", True, 2)
    crashes.trial_over(again)
    assert crashes.refusal(again, 3).startswith("version 7 of 'm' ended the process of workers cpu-1, cpu-2; ")
    assert crashes.refusal(Call("m", frozenset("12")), 3) == ""


class CrashingWorkers:
    """Workers that end when they load ``bad``, and come back empty."""

    def __init__(self) -> None:
        self.deaths = 0

    def start(self, name: str, crashes: LoadCrashes) -> tuple[_Worker, WorkerWatch]:
        worker = _Worker(self)
        record = WorkerRecord(name, "127.0.0.1", 1, 1, pool="cpu")
        return worker, WorkerWatch(record, lambda: None, control=worker, crashes=crashes)


class _Worker:
    def __init__(self, fleet: CrashingWorkers) -> None:
        self._fleet = fleet
        self.serving: dict[str, frozenset[str]] = {}
        self.is_alive = True

    async def index(self) -> dict[str, dict[str, ServedState]]:
        await asyncio.sleep(0)
        if not self.is_alive:
            raise ControlFailed("no answer: ConnectError")
        return {model: {each: ServedState("READY", "d") for each in found} for model, found in self.serving.items()}

    async def serve(self, model: str, versions: Sequence[str], seconds: float) -> None:
        await asyncio.sleep(0.01)
        if not self.is_alive:
            raise ControlFailed("no answer: ReadError", cut=True)
        if model == "bad":
            self.is_alive = False
            self._fleet.deaths += 1
            raise ControlFailed("no answer: ReadError", cut=True)
        self.serving[model] = frozenset(versions)

    async def config_digest(self, model: str, version: str) -> str:
        raise AssertionError("a worker of our own tells its digests")

    async def close(self) -> None: ...


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_the_workers_of_a_controller_lose_one_process_more_and_serve_the_rest() -> None:
    async def scene() -> None:
        fleet, crashes = CrashingWorkers(), LoadCrashes()
        wanted = {"bad": frozenset("2"), "good": frozenset("1"), "fine": frozenset("1")}

        async def life(name: str) -> WorkerWatch | None:
            """From a start to the death, or to all that it can serve; the watch of a process that stays."""
            worker, watch = fleet.start(name, crashes)
            watch.want(wanted, ["bad", "good", "fine"], {}, {})
            await until(lambda: not worker.is_alive or "bad" in watch.view.failures)
            if worker.is_alive:
                await until(lambda: set(worker.serving) == {"good", "fine"})
                return watch
            # The connections of all its calls end with it.
            await until(lambda: not watch._calls)
            await watch.stop()
            return None

        async def lives(name: str) -> WorkerWatch:
            """Started again whenever it dies, as by a supervisor."""
            while (watch := await life(name)) is None:
                pass
            return watch

        watches = await asyncio.gather(*(lives(f"w{number}") for number in range(4)))
        # All of them once, since nothing was known; then one of them, to be sure.
        assert fleet.deaths == 5
        for watch in watches:
            failure = watch.view.failures["bad"]
            assert (failure.versions, "isolation" in failure.reason) == (frozenset("2"), True)
            await watch.stop()

    asyncio.run(scene())
