"""More changes in one apply, and more servers, than a store takes in one transaction: the leader splits them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from isochrone.control.desired.reconcile import DesiredModel
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.leader.controller import Controller
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import BY_ADDRESS, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, FleetRecord, KeptPool
from isochrone.control.state.view import View
from isochrone.store.base import Delete, Put
from isochrone.store.mirror import Mirror
from isochrone.store.operations import MAX_OPERATIONS
from isochrone.store.sqlite.store import SqliteStore

pytestmark = pytest.mark.long

KEYS = Keys("plant")
SECONDS = 60.0
MODELS = [f"m{number}" for number in range(MAX_OPERATIONS + 20)]
#: Nobody listens there: they are registered all the same.
SERVERS = tuple(
    WorkerRecord(f"cpu-{number}", "127.0.0.1", 1, 1, pool="cpu", kind="triton", incarnation=BY_ADDRESS)
    for number in range(MAX_OPERATIONS + 7)
)


async def _until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < ends, "waited in vain"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def _leader(
    directory: Path,
    epoch: EpochRecord,
    fleet: FleetRecord,
    desired: Mapping[str, DesiredModel],
    servers: tuple[WorkerRecord, ...],
) -> AsyncIterator[tuple[SqliteStore, Mirror]]:
    """A controller that leads, with these records in its store."""
    store = SqliteStore("sqlite:test.db", directory / "test.db")
    await store.transact((), (Put(KEYS.epoch, encode(epoch)), Put(KEYS.fleet, encode(fleet))))
    mirror = Mirror(store, KEYS.prefix)
    await mirror.start()
    controller = Controller(store, KEYS, mirror, "control-1", lambda record: (desired, servers))
    leading = asyncio.create_task(controller.run())
    try:
        yield store, mirror
    finally:
        leading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leading
        await mirror.stop()
        await store.close()


def test_any_number_of_models_and_servers_in_one_apply(tmp_path: Path) -> None:
    text = "name: plant\npools: {cpu: {addresses: ['127.0.0.1:1']}}\n"
    spec = parse_fleet(text, "fleet.yaml", tmp_path).model_dump(mode="json")
    served = {name: Assignment("1", pools=("cpu",)) for name in (*MODELS, "old")}

    async def run() -> None:
        desired = {name: DesiredModel("2", ("cpu",)) for name in MODELS}
        fleet = FleetRecord(1, text, spec, str(tmp_path))
        async with _leader(tmp_path, EpochRecord(4, served), fleet, desired, SERVERS) as (_, mirror):
            view = View(KEYS, mirror.entries)
            await _until(lambda: view.reconciled.generation == 1)
            assert len(view.workers) == len(SERVERS)
            assert {name for record in view.rollouts for name in record.changes} == set(MODELS)
            assert [record.identity for record in view.rollouts] == [f"r{1 + number}" for number in range(len(MODELS))]
            assert mirror.entries[KEYS.rollout_number].value == str(len(MODELS)).encode()
            # What goes waits for all of them.
            assert view.reconciled.retiring == ("old",)
            assert set(view.reconciled.rollouts) == {record.identity for record in view.rollouts}
            assert view.epoch == EpochRecord(4, served)

    asyncio.run(run())


def test_servers_of_a_pool_that_the_file_drops_stay_until_nothing_committed_names_it(tmp_path: Path) -> None:
    text = "name: plant\npools: {new: {addresses: ['127.0.0.1:1']}}\nmodels: {m: {version: 1}}"
    spec = parse_fleet(text, "fleet.yaml", tmp_path).model_dump(mode="json")
    old = WorkerRecord("old-server", "127.0.0.1", 2, 2, pool="old", kind="triton", incarnation=BY_ADDRESS)
    new = WorkerRecord("new-server", "127.0.0.1", 1, 1, pool="new", kind="triton", incarnation=BY_ADDRESS)
    fleet = FleetRecord(1, text, spec, str(tmp_path), kept={"old": KeptPool(servers=(old,))})
    served = EpochRecord(4, {"m": Assignment("1", pools=("old",))})

    async def run() -> None:
        async with _leader(tmp_path, served, fleet, {"m": DesiredModel("1", ("new",))}, (new,)) as (store, mirror):
            view = View(KEYS, mirror.entries)
            await _until(lambda: view.reconciled.generation == 1 and view.open_rollouts)
            assert set(view.workers) == {"old-server", "new-server"}
            # As the rollout's commit would: the model is served by the new pool, and nothing is on its way.
            (rollout,) = view.open_rollouts
            moved = EpochRecord(5, {"m": Assignment("1", pools=("new",))})
            await store.transact((), (Put(KEYS.epoch, encode(moved)), Delete(KEYS.rollout(rollout.identity))))
            await _until(lambda: set(view.workers) == {"new-server"})

    asyncio.run(run())
