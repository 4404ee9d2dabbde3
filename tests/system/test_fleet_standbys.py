"""Standby workers of a real fleet: idle at first, in the place of a killed worker, and serving when the pool grows."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from real_fleets import command, requests_had, small_fleet, until

from bench.control.checker import Commit
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import MODELS
from bench.control.running_fleet import WORKER, Part
from fleet_load import FleetLoad

pytestmark = pytest.mark.long


def standing_by(fleet: SupervisedFleet) -> set[str]:
    return {worker["name"] for worker in fleet.api.status()["workers"] if worker["standby"]}


def requests(fleet: SupervisedFleet, number: int) -> int:
    return requests_had(fleet.ports[WORKER] + 3 * (number - 1) + 2)


def serving(fleet: SupervisedFleet) -> set[str]:
    status = fleet.api.status()["workers"]
    return {worker["name"] for worker in status if not worker["standby"] and not worker["draining"]}


def test_standby_workers(tmp_path: Path) -> None:
    shape = Shape(workers=3, gateways=1, controllers=1, pool={"workers": 2, "warm": 1, "min": 1, "max": 4})
    with small_fleet(tmp_path, shape) as fleet:
        for number in (3, 4):
            address = f"127.0.0.1:{fleet.ports[WORKER] + 3 * (number - 1)}"
            fleet.parts = {**fleet.parts, f"cpu-{number}": Part(f"cpu-{number}", WORKER, address)}
        until(lambda: len(standing_by(fleet)) == 1 and len(serving(fleet)) == 2, "one that stands by")
        (spare,) = standing_by(fleet)
        with FleetLoad(fleet.gateways) as load:
            # Nothing goes there, and it has loaded what is committed.
            seen = requests(fleet, int(spare[-1]))
            load.wait_answers(20)
            assert requests(fleet, int(spare[-1])) == seen

            # One that serves is killed: the other takes its place, and it stands by when it is back.
            lost = min(serving(fleet))
            pid = fleet.pid(lost)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: standing_by(fleet) == {lost}, "the other to take its place")
            until(lambda: requests(fleet, int(spare[-1])) > seen, "requests for it")
            load.wait_answers(20)

            # The pool grows: the one that stands by serves before the new process has started.
            assert command(fleet, "scale", "cpu", "3").status == 0
            until(lambda: lost in serving(fleet), "it to serve again")
            until(lambda: standing_by(fleet) == {"cpu-4"}, "the new one to stand by")
            assert len(serving(fleet)) == 3
            load.wait_answers(20)

            # And shrinks: the highest numbers stop.
            assert command(fleet, "scale", "cpu", "1").status == 0
            until(lambda: serving(fleet) | standing_by(fleet) == {"cpu-1", "cpu-2"}, "the others to stop")
            until(lambda: len(serving(fleet)) == 1 and len(standing_by(fleet)) == 1, "one of each")
            load.wait_answers(20)
        assert not load.failed, load.failed[:5]
        load.check([Commit(1, dict.fromkeys(MODELS, "1"))])
        said = command(fleet, "status").said
        assert "stands by" in said
        events = command(fleet, "events").said
        assert "standby worker serves" in events
