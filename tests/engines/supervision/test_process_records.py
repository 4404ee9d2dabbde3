"""Records of processes that died or wait for a machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.keys import Keys
from isochrone.control.state.view import View
from isochrone.engines.base import Exit
from isochrone.engines.supervision.process_records import ProcessRecords
from isochrone.store.opening import open_store

KEYS = Keys("plant")
GPU = ProcessSpec("gpu-1", "worker", ("serve",), "gpu")
REASON = "no Ray node has gpus: 1"


def test_a_process_that_waits_has_a_record_until_it_has_a_machine(tmp_path: Path) -> None:
    async def written(records: ProcessRecords) -> View:
        await records.write(View(KEYS, (await store.list(KEYS.prefix)).entries))
        return View(KEYS, (await store.list(KEYS.prefix)).entries)

    async def run() -> None:
        records = ProcessRecords(store, KEYS, lambda name: ["isochrone serve: out of memory"])
        records.settle({"gpu-1": GPU}, (), {"gpu-1": REASON})
        record = (await written(records)).processes["gpu-1"]
        assert (record.role, record.pool, record.deaths, record.how) == ("worker", "gpu", 0, f"waits: {REASON}")
        records.settle({"gpu-1": GPU}, (), {"gpu-1": ""})
        assert (await written(records)).processes == {}
        # What an engine said before the process served is out of date.
        records.settle({"gpu-1": GPU}, {"gpu-1"}, {"gpu-1": REASON})
        assert (await written(records)).processes == {}
        # A process that died and waits for a machine has both: how it ended, and why there is no other yet.
        records.died(Exit(GPU, 7, -9, 0.1))
        records.settle({"gpu-1": GPU}, (), {"gpu-1": REASON})
        record = (await written(records)).processes["gpu-1"]
        assert (record.deaths, record.how, record.error) == (
            1,
            "was ended by signal 9",
            "isochrone serve: out of memory",
        )
        assert record.waits == REASON
        records.settle({"gpu-1": GPU}, (), {"gpu-1": ""})
        record = (await written(records)).processes["gpu-1"]
        assert (record.deaths, record.waits) == (1, "")
        records.settle({"gpu-1": GPU}, {"gpu-1"}, {})
        assert (await written(records)).processes == {}
        await store.close()

    store = open_store(f"sqlite:{tmp_path / 'test.db'}")
    asyncio.run(run())


def test_how_a_process_was_lost_is_recorded(tmp_path: Path) -> None:
    store = open_store(f"sqlite:{tmp_path / 'test.db'}")
    records = ProcessRecords(store, KEYS, lambda name: [])
    records.died(Exit(GPU, 0, 1, 0.0, "was lost with Ray node 10.0.0.7"))
    assert records.dead["gpu-1"].how == "was lost with Ray node 10.0.0.7"
    asyncio.run(store.close())
