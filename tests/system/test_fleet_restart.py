"""A pool whose workers all have to be restarted, under load: one after the other, and no request fails for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_fleets import applied, pids, rewritten, small_fleet, until

from bench.control.checker import Commit
from bench.control.models import MODELS
from fleet_load import FleetLoad

pytestmark = pytest.mark.long


def test_a_changed_pool_is_restarted_worker_by_worker(tmp_path: Path) -> None:
    with small_fleet(tmp_path) as fleet:
        before = pids(fleet)
        workers = ("cpu-1", "cpu-2")
        with FleetLoad(fleet.gateways) as load:
            rewritten(fleet, lambda document: document["pools"]["cpu"].update(memory="1GiB"))
            assert "restart  pool  cpu   cpu-1, cpu-2 (memory: not stated → 1GiB)" in applied(fleet).said
            # A worker that is back has yet to load what is committed: until then the other one must stay.
            until(lambda: all(fleet.pid(name) not in (None, before[name]) for name in workers), "the new workers")
            until(lambda: all(map(fleet.responds, workers)), "the new workers to serve")
            load.wait_answers(40)
        assert not load.failed, load.failed[:5]
        load.check([Commit(1, dict.fromkeys(MODELS, "1"))])
        after = pids(fleet)
        assert {name: after[name] for name in after if name not in workers} == {
            name: before[name] for name in before if name not in workers
        }
