"""The supervisor and processes whose machines are lost, with an engine whose answers a test decides."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import FleetRecord
from isochrone.control.state.view import View
from isochrone.engines.base import Engine, Running
from isochrone.engines.supervision import probes, signs
from isochrone.engines.supervision.supervisor import Supervisor
from isochrone.store.base import Delete, Put
from isochrone.store.opening import open_store

SECONDS = 100.0
KEYS = Keys("plant")


class LostMachines(Engine):
    """All its processes run on machines that do not answer. Replacing one of them never ends."""

    name: ClassVar[str] = "far"

    def __init__(self) -> None:
        super().__init__()
        self.specs: dict[str, ProcessSpec] = {}
        self.replaced: list[str] = []

    async def start(self, spec: ProcessSpec) -> None:
        self.specs[spec.name] = spec

    async def stop(self, name: str, grace: float) -> None:
        self.specs.pop(name, None)

    def running(self) -> dict[str, Running]:
        return {name: Running(7, spec, 0.0, 0, reachable=False) for name, spec in self.specs.items()}

    def last_lines(self, name: str, count: int) -> Sequence[str]:
        return ()

    def log_place(self, name: str) -> str:
        return ""

    def may_run(self, name: str, pid: int) -> bool:
        return False

    async def replace(self, name: str) -> None:
        self.replaced.append(name)
        await asyncio.Event().wait()

    async def close(self) -> None:
        return


class Plant:
    def __init__(self, directory: Path) -> None:
        self.store = open_store(f"sqlite:{directory / 'test.db'}")
        self.engine = LostMachines()
        self.lines: list[str] = []
        self.supervisor = Supervisor(self.engine, self.store, KEYS, self.lines.append, desired=_desired)
        self.stopping = asyncio.Event()

    async def want(self, *names: str, engine: str = LostMachines.name) -> None:
        record = FleetRecord(1, "", {"names": names}, engine=engine)
        await self.store.transact((), (Put(KEYS.fleet, encode(record)),))

    async def until(self, condition: Callable[[], object]) -> None:
        ends = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < ends, self.lines
            await asyncio.sleep(0.01)


def _desired(record: FleetRecord, view: View, sizes: Mapping[str, int]) -> dict[str, ProcessSpec]:
    return {name: ProcessSpec(name, "worker", ("serve",), "cpu") for name in record.spec["names"]}


@contextlib.asynccontextmanager
async def plant(directory: Path) -> AsyncIterator[Plant]:
    made = Plant(directory)
    work = asyncio.create_task(made.supervisor.run(made.stopping, asyncio.Event()))
    try:
        yield made
    finally:
        made.stopping.set()
        await asyncio.wait_for(work, SECONDS)
        await made.store.close()


def test_processes_of_lost_machines_are_probed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("w1", "w2", "w3")
    met = asyncio.Event()

    async def lives(host: str, port: int, tls: bool) -> bool:
        await together.wait()
        met.set()
        return True

    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want(*names)
            records = [Put(KEYS.worker(name), encode(WorkerRecord(name, "10.0.0.7", 1, 2, pid=7))) for name in names]
            await it.store.transact((), records)
            await it.until(lambda: [each.ready for each in it.supervisor.observed.values()] == [True] * len(names))
            await it.store.transact((), [Delete(each.key) for each in records])
            await it.until(met.is_set)

    together = asyncio.Barrier(len(names))
    monkeypatch.setattr(probes, "lives", lives)
    asyncio.run(run())


def test_the_supervisor_goes_on_while_the_engine_replaces_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want("w1")
            await it.until(lambda: it.engine.replaced)
            await it.want("w1", "w2")
            await it.until(lambda: "w2" in it.engine.replaced)
            await it.want("w1", "w2", "w3")
            await it.until(lambda: "w3" in it.engine.replaced)
            # Each of them once, however many turns pass.
            assert it.engine.replaced == ["w1", "w2", "w3"]

    monkeypatch.setattr(signs, "LOST_SECONDS", 0.0)
    asyncio.run(run())


def test_a_record_of_another_engine_is_ignored_and_reported_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want("w1")
            await it.until(lambda: "w1" in it.engine.specs)
            await it.want("w2", engine="local")
            await it.until(lambda: it.lines)
            await it.want("w3", engine="local")
            await it.until(lambda: (record := it.supervisor.view.fleet) and record.spec["names"] == ["w3"])
            await it.want("w1", "w4")
            await it.until(lambda: "w4" in it.engine.specs)
            assert it.engine.specs.keys() == {"w1", "w4"}
            assert len([line for line in it.lines if "engine local, and this supervisor has far" in line]) == 1

    asyncio.run(run())
