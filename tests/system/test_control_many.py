"""More changes in one apply, and more servers, than a store takes in one transaction: the leader splits them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from isochrone.control.controller import Controller
from isochrone.control.fleet.reading import parse_fleet
from isochrone.control.following import Asked
from isochrone.control.keys import Keys
from isochrone.control.records import BY_ADDRESS, Assignment, EpochRecord, FleetRecord, WorkerRecord, encode
from isochrone.control.view import View
from isochrone.store.base import Put
from isochrone.store.mirror import Mirror
from isochrone.store.operations import MAX_OPERATIONS
from isochrone.store.sqlite import SqliteStore

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


def test_any_number_of_models_and_servers_in_one_apply(tmp_path: Path) -> None:
    text = "name: plant\npools: {cpu: {addresses: ['127.0.0.1:1']}}\n"
    spec = parse_fleet(text, "fleet.yaml", tmp_path).model_dump(mode="json")
    served = {name: Assignment("1", pools=("cpu",)) for name in (*MODELS, "old")}

    async def run() -> None:
        store = SqliteStore("sqlite:test.db", tmp_path / "test.db")
        await store.transact((), (Put(KEYS.epoch, encode(EpochRecord(4, served))),))
        await store.transact((), (Put(KEYS.fleet, encode(FleetRecord(1, text, spec, str(tmp_path)))),))
        mirror = Mirror(store, KEYS.prefix)
        await mirror.start()
        view = View(KEYS, mirror.entries)
        asked = {name: Asked("2", ("cpu",)) for name in MODELS}
        controller = Controller(store, KEYS, mirror, "control-1", lambda record: (asked, SERVERS))
        leading = asyncio.create_task(controller.run())
        try:
            await _until(lambda: view.converged.generation == 1)
            assert len(view.workers) == len(SERVERS)
            assert {name for record in view.rollouts for name in record.changes} == set(MODELS)
            assert [record.identity for record in view.rollouts] == [f"r{1 + number}" for number in range(len(MODELS))]
            assert mirror.entries[KEYS.rollout_number].value == str(len(MODELS)).encode()
            # What goes waits for all of them.
            assert view.converged.retiring == ("old",)
            assert set(view.converged.rollouts) == {record.identity for record in view.rollouts}
            assert view.epoch == EpochRecord(4, served)
        finally:
            leading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leading
            await mirror.stop()
            await store.close()

    asyncio.run(run())
