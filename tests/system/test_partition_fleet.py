"""``isochrone partition --tiers`` on a running fleet: measured through its workers, which keep what they serve."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from real_fleets import served_by, small_fleet, until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.running_fleet import CONTROLLER
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
        pool={"tier": "edge", "arguments": OVERRIDES},
        pools={"far": {"workers": 1, "tier": "core", "arguments": OVERRIDES}, "bare": {"workers": 1, "tier": "other"}},
    )
    with small_fleet(tmp_path, shape) as fleet:
        until(lambda: set(workers_of(fleet)) == {"edge", "core", "other"}, "all workers")
        addresses = [workers_of(fleet)[tier]["address"] for tier in ("edge", "core")]

        refused = partition(fleet, file, "--tiers", "edge,other")
        assert refused.returncode == 1
        assert "in fleet.yaml: pools.bare.arguments: [--allow-file-overrides]" in refused.stderr
        unknown = partition(fleet, file, "--tiers", "edge,cloud")
        assert "a worker of Isochrone that serves (tiers: core, edge, other), given 'cloud'" in unknown.stderr
        by_address = partition(fleet, file, "--edge", addresses[0], "--core", addresses[1])
        assert "measure it with --tiers NEAR,FAR" in by_address.stderr

        until(lambda: all(served_by(address) for address in addresses), "models")
        served, rollouts = [served_by(address) for address in addresses], len(fleet.api.rollouts())
        done = partition(fleet, file, "--tiers", "edge,core", "--edge-price", "1", "--write", str(target))
        assert done.returncode == 0, done.stderr
        assert "left out" not in done.stderr
        found = json.loads(done.stdout)
        assert {"edge", "core"} < {option["name"] for option in found["options"]}
        assert found["chosen"] == "core"
        assert f'"{addresses[1]}"' in (target / "edge" / "net" / "config.pbtxt").read_text()
        assert [served_by(address) for address in addresses] == served
        assert len(fleet.api.rollouts()) == rollouts
