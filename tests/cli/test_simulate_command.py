"""``isochrone simulate``: tables, JSON, plots, errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from isochrone.cli import simulate
from isochrone.cli.main import app

SMALL = """\
name: small
about: What it shows.
seconds: 2
workload: {kind: poisson, rate: 500}
workers: [{model: fifo, count: 2, batch_ms: {1: 2.0}}]
"""
STEPS = SMALL.replace("{kind: poisson, rate: 500}", "{kind: steps, rate: 300, factors: [1, 2], step_seconds: 1}")


def invoke(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["simulate", *arguments])


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def test_help_shows_its_examples() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    printed = [line.strip() for line in result.output.splitlines()]
    examples = [line.strip() for line in simulate.EPILOG.splitlines() if line.startswith("  isochrone ")]
    assert len(examples) >= 4
    assert set(examples) <= set(printed)
    assert "--policy" in result.output


def test_the_table_has_a_row_per_policy_and_is_not_cut_off(small: str) -> None:
    result = invoke(small)
    assert result.exit_code == 0
    for text in ("What it shows.", "round_robin", "prequal", "p99.9 ms", "goodput/s", "missed", "rejected"):
        assert text in result.output
    assert "…" not in result.output
    assert "requests in" in result.output


def test_json_is_the_same_bytes_for_the_same_seed(small: str) -> None:
    first = invoke(small, "--json", "--seed", "3")
    assert first.exit_code == 0
    assert invoke(small, "--json", "--seed", "3").output == first.output
    assert invoke(small, "--json", "--seed", "4").output != first.output
    figures = json.loads(first.output)
    assert [policy["policy"] for policy in figures["policies"]] == ["round_robin", "prequal"]
    assert figures["policies"][0]["total"]["offered"] > 800


def test_policies_seeds_and_seconds_can_be_given(small: str) -> None:
    result = invoke(small, "--policy", "random", "--policy", "peak_ewma", "--seeds", "2", "--seconds", "1", "--json")
    figures = json.loads(result.output)
    assert [policy["policy"] for policy in figures["policies"]] == ["random", "peak_ewma"]
    assert [run["seed"] for run in figures["policies"][0]["runs"]] == [1, 2]
    assert "median of 2 runs" in invoke(small, "--seeds", "2", "--seconds", "1").output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere.yaml"], "nowhere.yaml: No such file or directory; expected a readable YAML file"),
        (["SMALL", "--policy", "best"], "--policy: best: expected one of the known policies round_robin"),
        (["SMALL", "--plot", "/nowhere/x.png"], "--plot: /nowhere/x.png: expected a file that can be written"),
        (["SMALL", "--plot", "x.word"], "x.word"),
    ],
)
def test_refusals_are_one_sentence(arguments: list[str], named: str, small: str) -> None:
    result = invoke(*(small if word == "SMALL" else word for word in arguments))
    assert result.exit_code == 1
    assert named in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("text", [SMALL, STEPS], ids=["bars", "steps"])
def test_a_plot_is_drawn(text: str, tmp_path: Path) -> None:
    scenario, picture = tmp_path / "s.yaml", tmp_path / "s.png"
    scenario.write_text(text)
    result = invoke(str(scenario), "--plot", str(picture))
    assert result.exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.name in result.output


def test_without_matplotlib_the_plot_says_so(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    result = invoke(small, "--plot", str(tmp_path / "x.png"))
    assert result.exit_code == 1
    assert "a plot needs matplotlib, which is not installed" in result.output


def test_fewer_seconds_shrink_warmup_and_steps_alike(tmp_path: Path) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text(STEPS + "warmup_seconds: 1\n")
    whole = json.loads(invoke(str(scenario), "--json", "--policy", "random").output)
    half = json.loads(invoke(str(scenario), "--json", "--policy", "random", "--seconds", "1").output)
    for figures, requests in ((whole, 900), (half, 450)):
        assert figures["policies"][0]["requests"] == pytest.approx(requests, rel=0.15)
        # The first of two steps is the warm-up.
        assert [row["offered"] > 0 for row in figures["policies"][0]["phases"]] == [False, True]


def test_steps_are_told_one_by_one(tmp_path: Path) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text(STEPS)
    result = invoke(str(scenario))
    assert "by phase" in result.output
    assert "1×  round_robin" in result.output
    assert "2×  prequal" in result.output
