"""A real leader and a worker whose first report comes late: it is told nothing before its models are accounted for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from isochrone.control.desired.reconcile import DesiredModel
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.leader import controller as controllers
from isochrone.control.leader.controller import Controller
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, FleetRecord, PlacementRecord
from isochrone.control.state.view import View
from isochrone.control.workers.control import ServedState
from isochrone.store.base import Put
from isochrone.store.mirror import Mirror
from isochrone.store.sqlite.store import SqliteStore

KEYS = Keys("plant")
MIB = 2**20
TEXT = """
name: plant
pools: {cpu: {workers: 2, memory: 100MiB, replicas: planned}}
models: {x: {memory: 80MiB}}
"""


class Workers:
    """Two workers, one with the only ready replica of a model. No load ends."""

    def __init__(self) -> None:
        self.held = {"cpu-1": {"x": {"1": ServedState("READY", "d")}}, "cpu-2": {}}
        #: By worker: whether it answers.
        self.answering = {"cpu-1": asyncio.Event(), "cpu-2": asyncio.Event()}
        self.reads = dict.fromkeys(self.held, 0)
        #: The worker, the model, its versions.
        self.calls: list[tuple[str, str, tuple[str, ...]]] = []

    def control(self, record: WorkerRecord, term: int = 0, own_fields: Mapping[str, str] | None = None) -> ControlOfOne:
        return ControlOfOne(self, record.name)


class ControlOfOne:
    """In place of ``WorkerControl``."""

    def __init__(self, workers: Workers, name: str) -> None:
        self._workers, self._name = workers, name

    async def index(self) -> dict[str, dict[str, ServedState]]:
        await self._workers.answering[self._name].wait()
        self._workers.reads[self._name] += 1
        return {model: dict(versions) for model, versions in self._workers.held[self._name].items()}

    async def serve(self, model: str, versions: Sequence[str], seconds: float) -> None:
        self._workers.calls.append((self._name, model, tuple(versions)))
        await asyncio.Event().wait()

    async def config_digest(self, model: str, version: str) -> str:
        raise AssertionError("a worker of our own tells its digests")

    async def close(self) -> None:
        pass


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def leader(directory: Path) -> AsyncIterator[Mirror]:
    """The placement record was written while the first worker was away: the model is not recorded there."""
    spec = parse_fleet(TEXT, "fleet.yaml", directory).model_dump(mode="json")
    served = {"x": Assignment("1", digest="d", pools=("cpu",), memory=80 * MIB)}
    workers = [
        WorkerRecord(name, "127.0.0.1", 1, 1, pool="cpu", memory=100 * MIB, incarnation="i")
        for name in ("cpu-1", "cpu-2")
    ]
    store = SqliteStore("sqlite:test.db", directory / "test.db")
    records = {
        KEYS.epoch: EpochRecord(4, served),
        KEYS.fleet: FleetRecord(1, TEXT, spec, str(directory)),
        KEYS.placement("cpu"): PlacementRecord(),
        **{KEYS.worker(each.name): each for each in workers},
    }
    await store.transact((), [Put(key, encode(record)) for key, record in records.items()])
    mirror = Mirror(store, KEYS.prefix)
    await mirror.start()
    desired = {"x": DesiredModel("1", ("cpu",), memory=80 * MIB)}
    leading = asyncio.create_task(Controller(store, KEYS, mirror, "control-1", lambda record: (desired, ())).run())
    try:
        yield mirror
    finally:
        leading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leading
        await mirror.stop()
        await store.close()


def test_a_worker_that_reports_late_keeps_the_only_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        workers = Workers()
        monkeypatch.setattr(controllers, "WorkerControl", workers.control)
        async with leader(tmp_path) as mirror:
            workers.answering["cpu-2"].set()
            # The leader has looked at both workers by then.
            await until(lambda: workers.reads["cpu-2"] > 1)
            workers.answering["cpu-1"].set()
            await until(lambda: "cpu-1" in View(KEYS, mirror.entries).placements["cpu"].replicas.get("x", ()))
            reads = workers.reads["cpu-1"]
            await until(lambda: workers.reads["cpu-1"] > reads)
            assert not [call for call in workers.calls if call[0] == "cpu-1"]

    asyncio.run(scene())
