"""``isochrone placement``: from a fleet file, without a control plane."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app

CONFIG = """
name: "{name}"
backend: "identity"
max_batch_size: 8
input [{{name: "x" data_type: TYPE_FP32 dims: [4]}}]
output [{{name: "x" data_type: TYPE_FP32 dims: [4]}}]
"""
FLEET = """\
name: demo
repository: models
pools:
  cpu: {workers: 2, memory: 1GiB}
  gpu: {workers: 1, memory: 4GiB, device: gpu, tier: core}
models:
  detector: {version: 1, memory: 700MiB, slo: {deadline_ms: 20}}
  tracker: {version: 1, memory: 300MiB, pools: [cpu]}
  planner: {version: 1, memory: 900MiB, pools: [gpu]}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    for name in ("detector", "tracker", "planner"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(CONFIG.format(name=name))
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return str(tmp_path / "fleet.yaml")


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["placement", *arguments])


def test_a_plan_of_a_file_places_every_model(fleet: str) -> None:
    result = invoke("plan", "--dry-run", fleet)
    assert result.exit_code == 0, result.output
    for text in ("detector", "1 move", "moves, in this order", "assumed: the rate of", "This command only shows."):
        assert text in result.output
    assert invoke("plan", fleet).output == result.output


def test_json_has_the_whole_plan(fleet: str) -> None:
    plan = json.loads(invoke("plan", fleet, "--json", "--rate", "detector=300", "--run-ms", "detector=4").output)
    models = {each["name"]: each for each in plan["models"]}
    # 300 a second of 4 ms are 1.2 workers: two replicas at 60 %.
    assert len(models["detector"]["after"]) == 2
    assert models["planner"]["after"] == ["gpu-1"]
    assert {move["action"] for move in plan["moves"]} == {"add"}


def test_a_model_that_fits_nowhere_fails_with_its_figures(fleet: str) -> None:
    result = invoke("plan", fleet, "--without", "gpu-1", "--json")
    assert result.exit_code == 1
    models = {each["name"]: each["unplaced"] for each in json.loads(result.output)["models"]}
    assert models["planner"] == "no worker may have planner: 2 by pool (cpu-1: it is in pool cpu; allowed: gpu)"
    assert models["detector"] == ""


def test_an_explanation_names_the_rule_of_every_worker(fleet: str) -> None:
    result = invoke("explain", "planner", "--fleet", fleet)
    assert result.exit_code == 0, result.output
    assert "it is in pool cpu; allowed: gpu" in result.output
    found = json.loads(invoke("explain", "planner", "--fleet", fleet, "--json").output)
    assert [(each["worker"], each["has"], each["rule"]) for each in found["workers"]] == [
        ("gpu-1", True, ""),
        ("cpu-1", False, "pool"),
        ("cpu-2", False, "pool"),
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("plan", "missing.yaml"), "missing.yaml: no such file; name a fleet.yaml"),
        (("plan", "FLEET", "--rate", "detector"), "rate: expected MODEL=NUMBER, given 'detector'"),
        (("plan", "FLEET", "--without", "cpu-9"), "without: expected a worker of the fleet"),
        (("explain", "nothing", "--fleet", "FLEET"), "model 'nothing': expected one of the known models detector"),
        (("plan", "--api", "http://127.0.0.1:1"), "no controller answers at http://127.0.0.1:1"),
    ],
)
def test_errors_are_one_sentence(fleet: str, arguments: tuple[str, ...], expected: str) -> None:
    result = invoke(*(fleet if word == "FLEET" else word for word in arguments))
    assert result.exit_code == 1
    assert expected in result.output
    assert "Traceback" not in result.output
