"""Which restarts of an applied file are not over, and the record of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import RestartsRecord
from isochrone.control.state.view import View
from isochrone.engines.supervision.pending_restarts import PendingRestarts, pending_restarts
from isochrone.engines.supervision.reconcile import Observed
from isochrone.store.base import Put
from isochrone.store.opening import open_store

KEYS = Keys("plant")


def worker(name: str, *words: str) -> ProcessSpec:
    return ProcessSpec(name, "worker", ("serve", *words), "cpu")


OLD = {name: worker(name) for name in ("w1", "w2")}
NEW = {name: worker(name, "--tls-cert", "c.pem") for name in ("w1", "w2")}


def test_a_restart_is_over_when_the_process_serves_with_the_new_settings() -> None:
    both = {name: Observed(spec, ready=True) for name, spec in OLD.items()}
    assert pending_restarts((), OLD, both) == ()
    assert pending_restarts((), NEW, both) == ("w1", "w2")
    # The first one is drained, ends, starts, and serves.
    for now in (
        {**both, "w1": Observed(OLD["w1"], ready=True, draining=1.0)},
        {"w2": both["w2"]},
        {**both, "w1": Observed(NEW["w1"])},
    ):
        assert pending_restarts(("w1", "w2"), NEW, now) == ("w1", "w2")
    serving = {**both, "w1": Observed(NEW["w1"], ready=True)}
    assert pending_restarts(("w1", "w2"), NEW, serving) == ("w2",)
    # What starts for the first time, dies by itself, or is not wanted any more, is no restart of the file.
    assert pending_restarts((), NEW, {}) == ()
    assert pending_restarts((), OLD, {**both, "w1": Observed(OLD["w1"])}) == ()
    assert pending_restarts(("w1", "w2"), {}, both) == ()
    # The file is put back before the second one has restarted.
    assert pending_restarts(("w2",), OLD, serving) == ("w1",)


def test_the_record_follows_and_survives_its_supervisor(tmp_path: Path) -> None:
    async def run() -> list[RestartsRecord | None]:
        store = open_store(f"sqlite:{tmp_path / 'test.db'}")
        found: list[RestartsRecord | None] = []
        revisions = []

        async def write(generation: int, desired: dict[str, ProcessSpec], observed: dict[str, Observed]) -> None:
            view = View(KEYS, (await store.list(KEYS.prefix)).entries)
            # Another supervisor each time: what is pending is in the record alone.
            await PendingRestarts(store, KEYS).write(view, generation, desired, observed)
            listed = await store.list(KEYS.prefix)
            found.append(View(KEYS, listed.entries).restarts)
            revisions.append(listed.revision)

        both = {name: Observed(spec, ready=True) for name, spec in OLD.items()}
        serving = {**both, "w1": Observed(NEW["w1"], ready=True)}
        try:
            await write(0, {}, {})
            await write(1, OLD, both)
            await write(1, OLD, both)
            assert revisions[1] == revisions[2], "nothing has changed"
            await write(2, NEW, both)
            await write(2, NEW, {"w2": both["w2"]})
            await write(2, NEW, serving)
            await write(2, NEW, {**serving, "w2": Observed(NEW["w2"], ready=True)})
            await store.transact((), [Put(KEYS.restarts, b"nonsense")])
            await write(2, NEW, serving)
        finally:
            await store.close()
        return found

    none, *found = asyncio.run(run())
    assert none is None
    assert [(each.generation, each.processes) for each in found if each is not None] == [
        (1, ()),
        (1, ()),
        (2, ("w1", "w2")),
        (2, ("w1", "w2")),
        (2, ("w2",)),
        (2, ()),
        (2, ("w2",)),
    ]
    began, later, last = found[2], found[3], found[4]
    assert began is not None
    assert later is not None
    assert last is not None
    assert began.at == later.at == last.at, "since the file was read"
