"""``isochrone partition --tiers`` on a running fleet: measured through its workers, which keep what they serve."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from real_fleets import applied, rewritten, served_by, small_fleet, until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.running_fleet import CONTROLLER, WORKER
from two_stage_net import residual_net

OVERRIDES = ["--allow-file-overrides"]


def partition(fleet: SupervisedFleet, file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "isochrone", "partition", str(file), *arguments]
    command += ["--api", f"http://{fleet.of(CONTROLLER)[0].address}", "--cuts", "2", "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


def workers_of(fleet: SupervisedFleet) -> dict[str, Any]:
    return {worker["tier"]: worker for worker in fleet.api.status()["workers"] if not worker["fault"]}


@pytest.mark.long
def test_tiers_of_a_fleet_are_measured_and_what_they_serve_is_kept(tmp_path: Path) -> None:
    file, target = tmp_path / "net.onnx", tmp_path / "divided"
    file.write_bytes(residual_net().SerializeToString())
    shape = Shape(
        workers=1,
        gateways=1,
        controllers=1,
        pool={"tier": "edge"},
        pools={"core": {"workers": 1, "tier": "core", "arguments": OVERRIDES}},
    )
    with small_fleet(tmp_path, shape) as fleet:
        until(lambda: set(workers_of(fleet)) == {"edge", "core"}, "both workers")
        edge, core = (workers_of(fleet)[tier]["address"] for tier in ("edge", "core"))

        refused = partition(fleet, file, "--tiers", "edge,core")
        assert refused.returncode == 1
        assert "in fleet.yaml: pools.cpu.arguments: [--allow-file-overrides]" in refused.stderr
        unknown = partition(fleet, file, "--tiers", "edge,cloud")
        assert "a tier with a worker of Isochrone that serves (tiers: core, edge), given 'cloud'" in unknown.stderr
        by_address = partition(fleet, file, "--edge", edge, "--core", core)
        assert "measure it with --tiers NEAR,FAR" in by_address.stderr

        rewritten(fleet, lambda document: document["pools"]["cpu"].update(arguments=OVERRIDES))
        name = fleet.of(WORKER)[0].name
        before = fleet.pid(name)
        applied(fleet)
        until(lambda: fleet.pid(name) not in (None, before) and "edge" in workers_of(fleet), "the worker's new process")
        until(lambda: served_by(workers_of(fleet)["edge"]["address"]), "its models")
        addresses = [workers_of(fleet)[tier]["address"] for tier in ("edge", "core")]
        served = [served_by(address) for address in addresses]
        rollouts = len(fleet.api.rollouts())

        done = partition(fleet, file, "--tiers", "edge,core", "--edge-price", "1", "--write", str(target))
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert "left out" not in done.stderr
        assert {"edge", "core"} < {option["name"] for option in found["options"]}
        assert found["chosen"] == "core"
        assert f'"{addresses[1]}"' in (target / "edge" / "net" / "config.pbtxt").read_text()
        assert [served_by(address) for address in addresses] == served
        assert len(fleet.api.rollouts()) == rollouts
