"""The driver of a worker that behaves like a real one: loads that hang, are rejected, are cancelled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import pytest

from isochrone.control.rollout.observed_state import Failure
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.workers.control import ControlFailed, ServedState
from isochrone.control.workers.driver import WorkerDriver
from isochrone.models.repository.names import measured_name

RECORD = WorkerRecord("w1", "127.0.0.1", 1, 1, pool="cpu")


class ScriptedWorker:
    """Performs a call completely or not at all. ``broken`` versions are rejected, loads of ``hanging`` models never
    end."""

    def __init__(self) -> None:
        self.serving: dict[str, frozenset[str]] = {}
        self.broken: set[tuple[str, str]] = set()
        self.hanging: set[str] = set()
        #: By model: a version whose load has not ended, of a caller that is gone.
        self.loading: dict[str, str] = {}
        #: Every call that was begun, and those given up by the caller.
        self.calls: list[tuple[str, str]] = []
        self.without_aborted: list[tuple[str, str]] = []
        self.looks = 0
        self.is_silent = False
        self.is_closed = False

    async def index(self) -> dict[str, dict[str, ServedState]]:
        self.looks += 1
        await asyncio.sleep(0)
        if self.is_silent:
            raise ControlFailed("worker 'w1' (127.0.0.1:1): connection refused")
        found = {
            model: {version: ServedState("READY", f"digest-{version}") for version in versions}
            for model, versions in self.serving.items()
        }
        for model, version in self.loading.items():
            found.setdefault(model, {})[version] = ServedState("LOADING")
        return found

    async def serve(self, model: str, versions: Sequence[str], seconds: float) -> None:
        call = (model, ",".join(versions))
        self.calls.append(call)
        if model in self.hanging:
            try:
                await asyncio.Event().wait()
            finally:
                self.without_aborted.append(call)
        if bad := [version for version in versions if (model, version) in self.broken]:
            raise ControlFailed(f"worker 'w1' (127.0.0.1:1): version {bad[0]} is broken", refused=True)
        await asyncio.sleep(0)
        self.loading.pop(model, None)
        self.serving[model] = frozenset(versions)

    async def config_digest(self, model: str, version: str) -> str:
        raise AssertionError("a worker of our own tells its digests")

    async def close(self) -> None:
        self.is_closed = True


async def until(condition: Callable[[], object]) -> None:
    """Polls: what a worker does wakes nobody."""
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def run(scene: Callable[[ScriptedWorker, WorkerDriver], object], may_act: Callable[[], bool] = lambda: True) -> None:
    async def play() -> None:
        worker = ScriptedWorker()
        driver = WorkerDriver(RECORD, lambda: None, may_act, worker)
        try:
            await scene(worker, driver)  # type: ignore[misc]
        finally:
            await driver.stop()
        assert worker.is_closed
        assert asyncio.all_tasks() == {asyncio.current_task()}, "no call outlives its watch"

    asyncio.run(play())


def versions(**models: str) -> dict[str, frozenset[str]]:
    return {model: frozenset(each) for model, each in models.items()}


def test_a_broken_previous_version_does_not_keep_a_worker_from_the_committed_one() -> None:
    async def scene(worker: ScriptedWorker, driver: WorkerDriver) -> None:
        worker.broken = {("m", "1")}
        driver.set_desired(versions(m="12"), ["m"], versions(m="1"))
        await until(lambda: driver.observed.failures)
        assert worker.calls[:2] == [("m", "2"), ("m", "1,2")]
        assert worker.serving == versions(m="2")
        assert driver.observed.failures["m"] == Failure(frozenset("1"), "version 1 is broken")
        assert set(driver.observed.ready("m")) == {"2"}
        worker.broken = set()
        await until(lambda: worker.serving == versions(m="12"))
        await until(lambda: not driver.observed.failures)

    run(scene)


def test_a_load_that_hangs_holds_up_no_other_model_and_ends_with_another_wish() -> None:
    async def scene(worker: ScriptedWorker, driver: WorkerDriver) -> None:
        worker.serving = versions(m="1")
        worker.hanging = {"m"}
        driver.set_desired(versions(m="12", n="1"), ["m", "n"], {}, {})
        await until(lambda: worker.serving.get("n"))
        assert worker.calls[0] == ("m", "1,2")
        # The same again changes nothing.
        driver.set_desired(versions(m="12", n="1"), ["m", "n"], {}, {})
        await until(lambda: driver.observed.ready("n"))
        assert worker.without_aborted == []
        worker.hanging = set()
        driver.set_desired(versions(m="3", n="1"), ["m", "n"], {}, {})
        await until(lambda: worker.serving["m"] == frozenset("3"))
        assert worker.without_aborted == [("m", "1,2")]

    run(scene)


def test_a_load_that_runs_on_though_nobody_wants_it_is_given_up_by_a_call_with_what_is_wanted() -> None:
    async def scene(worker: ScriptedWorker, driver: WorkerDriver) -> None:
        worker.serving = versions(m="1")
        worker.loading = {"m": "8", "new": "1"}
        driver.set_desired(versions(m="1"), ["m"])
        await until(lambda: not worker.loading)
        assert sorted(worker.calls) == [("m", "1"), ("new", "")]
        assert worker.serving["m"] == frozenset("1")

    run(scene)


def test_a_load_that_is_still_right_goes_on() -> None:
    async def scene(worker: ScriptedWorker, driver: WorkerDriver) -> None:
        worker.serving = versions(m="2")
        worker.hanging = {"m"}
        driver.set_desired(versions(m="12"), ["m"], versions(m="1"))
        await until(lambda: worker.calls)
        driver.set_desired(versions(m="12"), ["m"])
        driver.set_desired(versions(m="12", n="1"), ["m", "n"], None, {})
        await until(lambda: worker.serving.get("n"))
        assert worker.calls.count(("m", "1,2")) == 1
        assert worker.without_aborted == []

    run(scene)


@pytest.mark.parametrize("serving", ["", "1"])
def test_who_may_not_act_tells_a_worker_nothing(serving: str) -> None:
    leads = [False]

    async def scene(worker: ScriptedWorker, driver: WorkerDriver) -> None:
        worker.serving = versions(m=serving, gone="1")
        driver.set_desired(versions(m="2"), ["m"])
        await until(lambda: worker.looks > 3)
        assert worker.calls == []
        leads[0] = True
        await until(lambda: worker.serving.get("m") == frozenset("2") and not worker.serving["gone"])

    run(scene, lambda: leads[0])


def test_a_worker_that_does_not_answer_keeps_its_last_report_and_says_so() -> None:
    async def scene(worker: ScriptedWorker, driver: WorkerDriver) -> None:
        assert driver.observed.read_at == -math.inf, "not read yet"
        worker.serving = versions(m="1")
        await until(lambda: driver.observed.ready("m"))
        first = driver.observed.read_at
        assert math.isfinite(first)
        worker.is_silent = True
        await until(lambda: driver.observed.read_at == -math.inf)
        assert driver.observed.ready("m")
        worker.is_silent = False
        await until(lambda: driver.observed.read_at > first)

    run(scene)


def test_a_model_that_a_command_measures_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measured_name("0123")

    async def scene(worker: ScriptedWorker, driver: WorkerDriver) -> None:
        worker.serving = {measured: frozenset("1"), "m": frozenset("1")}
        driver.set_desired(versions(m="2"), ["m"])
        await until(lambda: worker.serving.get("m") == frozenset("2"))
        looks = worker.looks
        driver._wake.set()
        await until(lambda: worker.looks > looks + 1)
        assert worker.serving[measured] == frozenset("1")
        assert measured not in (driver.observed.models or {})
        # What a command that was killed left there.
        monkeypatch.setattr("isochrone.control.workers.driver.MEASURED_SECONDS", 0.0)
        driver._wake.set()
        await until(lambda: worker.serving[measured] == frozenset())
        assert (measured, "") in worker.calls

    run(scene)
