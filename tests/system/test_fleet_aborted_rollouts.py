"""Versions that cannot be: each rollout of one is aborted, nobody sees anything of it, and its reason is told.

Four workers: three of one pool, and one whose pool has a copy of the repository of its own, as another machine has.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from real_fleets import ask, command, served_by, small_fleet, until

from bench.control.checker import Commit
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import MODELS, write_corrupt_version, write_large_version, write_repository, write_version
from fleet_load import FleetLoad

pytestmark = pytest.mark.long


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def _addresses(fleet: SupervisedFleet) -> list[str]:
    return [str(worker["address"]) for worker in fleet.api.status()["workers"]]


def _aborted(fleet: SupervisedFleet, model: str, *reasons: str) -> None:
    """Rolls version 2 out, which must fail for these reasons and leave no trace."""
    started = command(fleet, "rollout", "start", f"{model}=2")
    assert started.status == 1, started.said
    identity = fleet.api.rollouts()[-1]["identity"]
    record = command(fleet, "rollout", "status", identity, "--json").data
    assert (record["state"], record["epoch"]) == ("aborted", 0)
    said = " ".join(command(fleet, "rollout", "status", identity).said.split())
    for reason in reasons:
        assert reason in record["reason"]
        assert reason in said
        assert reason in " ".join(started.said.split())
    workers = _addresses(fleet)
    until(lambda: all(served_by(worker)[model] == {"1"} for worker in workers), "workers to let version 2 go")
    for gateway in fleet.gateways:
        refused = ask(gateway, model, "2")
        assert refused.status == 404, refused.body
    status = fleet.api.status()
    assert (status["epoch"], status["rollouts"]) == (1, [])


def test_versions_that_cannot_be_are_aborted_unseen(tmp_path: Path, models: Path) -> None:
    other = tmp_path / "other"
    shape = Shape(
        workers=3,
        gateways=1,
        controllers=1,
        pool={"memory": "100MiB"},
        pools={"edge": {"workers": 1, "memory": "100MiB", "repository": str(other)}},
        models={"stage_a": {"memory": "60MiB"}, "solo": {"memory": "10MiB"}},
    )
    write_repository(other, 3)
    fleet = small_fleet(tmp_path, shape, versions=3)
    shutil.rmtree(other)
    shutil.copytree(models, other)
    with fleet:
        until(lambda: len(_addresses(fleet)) == 4, "all four workers")
        with FleetLoad(fleet.gateways, models=("solo", "chain", "stage_b", "stage_a")) as load:
            # Broken off in the middle.
            for repository in (models, other):
                write_corrupt_version(repository, "solo", 2)
            _aborted(fleet, "solo", "not every worker could load it: worker ", "version 2: import raised SyntaxError")
            # Well on three workers; its warm-up fails on the fourth.
            for repository in (models, other):
                write_version(repository, "solo", 2, fails_on="cpu-2")
            _aborted(fleet, "solo", "not every worker", "worker cpu-2: ", "version 2 does not run on worker cpu-2")
            # Beside version 1 there is no room.
            for repository in (models, other):
                write_large_version(repository, "stage_a", 2, 1 << 30)
            _aborted(fleet, "stage_a", "stage_a version 2 needs 60 MiB", "makes 130 MiB on worker", "has 100 MiB")
            # Another version 2 where the repository is another copy: found only when all have loaded it.
            (other / "stage_b" / "2" / "model.py").write_text(
                (models / "stage_b" / "2" / "model.py").read_text() + "\n# Changed on this machine alone.\n"
            )
            _aborted(fleet, "stage_b", "stage_b version 2 is not the same everywhere", "worker edge-1 has")
            # What is whole is rolled out as if nothing had been.
            for repository in (models, other):
                write_version(repository, "solo", 2)
            identity = fleet.api.start_rollout({"solo": "2"})
            before = load.history[-1].ended_ns
            assert fleet.api.wait(identity)["state"] == "done"
            load.wait_answers()
        assert not load.failed, load.failed[:5]
        versions = dict.fromkeys(MODELS, "1")
        load.check([Commit(1, versions), Commit(2, {**versions, "solo": "2"}, asked_ns=before)])
        assert load.versions("solo") == {"1", "2"}
        assert all(load.versions(model) == {"1"} for model in ("chain", "stage_a", "stage_b"))
