"""Workers that come, go and are drained under load: no request is lost or fails for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_fleets import command, requests_had, served_by, small_fleet, until

from bench.control.checker import Commit
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import MODELS
from bench.control.running_fleet import WORKER, Part
from fleet_load import FleetLoad

pytestmark = pytest.mark.long


def _workers(fleet: SupervisedFleet) -> dict[str, bool]:
    """By name: whether it drains."""
    return {worker["name"]: worker["draining"] for worker in fleet.api.status()["workers"]}


def _requests(fleet: SupervisedFleet, name: str) -> int:
    """Requests that a worker has had so far."""
    return requests_had(int(fleet.parts[name].address.rpartition(":")[2]) + 2)


def test_scaling_and_draining_under_load(tmp_path: Path) -> None:
    shape = Shape(workers=2, gateways=1, controllers=1, pool={"min": 1, "max": 4})
    with small_fleet(tmp_path, shape) as fleet:
        before = fleet.pid("cpu-1")
        third = Part("cpu-3", WORKER, f"127.0.0.1:{fleet.ports[WORKER] + 6}")
        fleet.parts = {**fleet.parts, "cpu-3": third}
        with FleetLoad(fleet.gateways) as load:
            # Up: the new one is given what is committed, then requests.
            assert command(fleet, "scale", "cpu", "3").status == 0
            until(lambda: fleet.responds("cpu-3"), "cpu-3")
            until(lambda: _requests(fleet, "cpu-3"), "requests for cpu-3")
            assert served_by(third.address)["solo"] == {"1"}

            # Drained by hand: it gets nothing more, and stays; then it works again.
            assert command(fleet, "drain", "cpu-1").status == 0
            assert _workers(fleet)["cpu-1"]
            until(lambda: _gets_nothing(fleet, load, "cpu-1"), "cpu-1 to be left alone")
            assert command(fleet, "undrain", "cpu-1").status == 0
            seen = _requests(fleet, "cpu-1")
            until(lambda: _requests(fleet, "cpu-1") > seen, "requests for cpu-1")

            # Down: drained and stopped, the highest first; not below what the file allows.
            assert command(fleet, "scale", "cpu", "1").status == 0
            until(lambda: set(_workers(fleet)) == {"cpu-1"}, "the others to go")
            until(lambda: fleet.pid("cpu-2") is None and fleet.pid("cpu-3") is None, "their processes to end")
            refused = command(fleet, "scale", "cpu", "0")
            assert refused.status == 1
            assert "workers: expected 1 to 4, the pool's limits, given 0" in refused.said
            load.wait_answers()
        assert not load.failed, load.failed[:5]
        load.check([Commit(1, dict.fromkeys(MODELS, "1"))])
        assert fleet.pid("cpu-1") == before
        # A name that was drained to be stopped is not drained when it comes again.
        assert command(fleet, "scale", "cpu", "2").status == 0
        until(lambda: _workers(fleet) == {"cpu-1": False, "cpu-2": False}, "cpu-2 again")


def _gets_nothing(fleet: SupervisedFleet, load: FleetLoad, name: str) -> bool:
    """Whether requests go on, and none to this worker."""
    seen = _requests(fleet, name)
    load.wait_answers(20)
    return _requests(fleet, name) == seen
