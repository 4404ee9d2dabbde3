"""Rollouts of a divided model: its stages are on workers of two pools, and no answer is of stages of two versions."""

from __future__ import annotations

import os
import signal
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import pytest
from real_fleets import applied, command, rewritten, served_by, until

from bench.control.control_api import OVER, Refused
from bench.control.fleet_run import SupervisedFleet
from divided_fleet import DividedLoad, divided_fleet, divided_models

pytestmark = pytest.mark.long

#: Of a rollout, in their order.
STATES = ["pending", "preparing", "switching", "draining", *OVER]


def to_version(fleet: SupervisedFleet, version: int) -> str:
    return fleet.api.start_rollout(dict.fromkeys(divided_models(fleet), str(version)))


def served_stages(workers: Iterable[str], models: Container[str]) -> list[set[str]]:
    """The versions of these models on the workers."""
    return [versions for worker in workers for model, versions in served_by(worker).items() if model in models]


@pytest.mark.parametrize("keeps_one", [True, False], ids=["cut", "divisions"])
def test_a_divided_model_is_rolled_out_and_back(tmp_path: Path, keeps_one: bool) -> None:
    with (
        divided_fleet(tmp_path, keeps_one=keeps_one, versions=3) as fleet,
        DividedLoad(fleet.gateways, versions=3) as load,
    ):
        load.wait_for(1)
        load.changes()
        assert fleet.api.wait(to_version(fleet, 2))["state"] == "done"
        load.wait_for(2)
        load.changes()
        assert fleet.api.wait(fleet.api.rollback("net"))["state"] == "done"
        load.wait_for(1)
        versions = fleet.api.versions()
        assert {versions[name] for name in divided_models(fleet)} == {"1"}
        load.changes()
        assert fleet.api.wait(to_version(fleet, 3))["state"] == "done"
        load.wait_for(3)
        core = next(worker["address"] for worker in fleet.api.status()["workers"] if worker["pool"] == "far")
        stages = [name for name in served_by(core) if name.startswith("net")]
        assert stages
        until(lambda: all(served_by(core)[name] == {"1", "3"} for name in stages), "version 2 to be unloaded")
    load.check(1, 2, 1, 3)


def test_a_stage_that_cannot_be_loaded_aborts_the_rollout_of_all(tmp_path: Path) -> None:
    with divided_fleet(tmp_path, keeps_one=True) as fleet, DividedLoad(fleet.gateways) as load:
        load.wait_for(1)
        (tmp_path / "core" / "net_2.core" / "2" / "model.onnx").write_bytes(b"broken off")
        load.changes()
        record = fleet.api.wait(to_version(fleet, 2))
        assert record["state"] == "aborted"
        assert "worker far-" in record["reason"]
        load.wait_for(1)
        workers = [worker["address"] for worker in fleet.api.status()["workers"]]
        stages = set(divided_models(fleet))
        until(lambda: all(each == {"1"} for each in served_stages(workers, stages)), "version 2 to be unloaded")
    load.check(1, 1)


def test_a_stage_alone_is_no_rollout(tmp_path: Path) -> None:
    """The second stage of version 2 would be nowhere: every request would fail."""
    with divided_fleet(tmp_path, keeps_one=True) as fleet, DividedLoad(fleet.gateways) as load:
        with pytest.raises(Refused, match="expected both in one rollout"):
            fleet.api.start_rollout({"net": "2", "net_1": "2", "net_2": "2"})
        rewritten(fleet, lambda document: document["models"]["net_2"].update(version="2"))
        ended = command(fleet, "apply", str(fleet.file), "--yes")
        assert ended.status == 1
        assert "expected both in one rollout" in " ".join(ended.said.split())
        load.wait_for(1)

        def all_of_it(document: dict[str, Any]) -> None:
            for name in divided_models(fleet):
                document["models"][name].update(version="2")

        rewritten(fleet, all_of_it)
        load.changes()
        applied(fleet)
        assert len(fleet.api.rollouts()) == 2
        load.wait_for(2)
    load.check(1, 2)


@pytest.mark.parametrize(
    ("state", "cores", "keeps_one"),
    [("preparing", 2, True), ("switching", 2, True), ("done", 2, True), ("preparing", 1, False), ("done", 1, False)],
)
def test_a_core_worker_that_is_killed_during_a_rollout_is_survived(
    tmp_path: Path, state: str, cores: int, keeps_one: bool
) -> None:
    """The other core worker has the second stages of both versions; without one, requests run on the edge."""
    with (
        divided_fleet(tmp_path, keeps_one=keeps_one, cores=cores) as fleet,
        DividedLoad(fleet.gateways) as load,
    ):
        load.wait_for(1)
        load.changes()
        identity = to_version(fleet, 2)
        # Or a later state, where one was too short to be seen.
        fleet.api.wait(identity, until=lambda record: STATES.index(record["state"]) >= STATES.index(state))
        killed = fleet.pid("far-1")
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        record = fleet.api.wait(identity)
        found = 2 if record["state"] == "done" else 1
        load.wait_for(found)
        until(lambda: fleet.pid("far-1") not in (None, killed), "the supervisor to start it again")
        until(lambda: len(fleet.api.status()["workers"]) == 1 + cores, "it to register")
        load.wait_for(found)
    load.check(1, found)
