"""``isochrone simulate autoscaling``: table, JSON, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.cli.simulations import autoscaling
from isochrone.simulate.autoscaling import comparison, courses
from isochrone.simulate.autoscaling.courses import Course


def invoke(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["simulate", "autoscaling", *arguments])


@pytest.fixture(autouse=True)
def _short_course(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real course, cut to the minutes in which the crowd comes."""

    def short(seed: int) -> Course:
        whole = courses.flash_crowd(seed)
        first = next(second for second, rate in enumerate(whole.rates) if rate > 2500) - 300
        return Course("flash_crowd", whole.arrivals[first : first + 600], whole.rates[first : first + 600])

    monkeypatch.setitem(comparison.COURSES, "flash_crowd", short)


def test_help_shows_its_examples() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    printed = [line.strip() for line in result.output.splitlines()]
    examples = [line.strip() for line in autoscaling.EPILOG.splitlines() if line.startswith("  isochrone ")]
    assert len(examples) >= 3
    assert set(examples) <= set(printed)


def test_the_table_has_a_row_for_every_algorithm() -> None:
    result = invoke("--course", "flash_crowd", "--seeds", "2")
    assert result.exit_code == 0
    for text in ("isochrone", "HPA", "KEDA", "Ray Serve", "llm-d", "the load itself", "worker-hours", "2 seeds"):
        assert text in result.output
    assert "…" not in result.output


def test_json_repeats_by_seed_and_standby_workers_count() -> None:
    first = invoke("--course", "flash_crowd", "--json", "--seed", "3")
    assert first.exit_code == 0
    assert invoke("--course", "flash_crowd", "--json", "--seed", "3").output == first.output
    assert invoke("--course", "flash_crowd", "--json", "--seed", "4").output != first.output
    (cold,) = json.loads(first.output)["courses"]
    assert [row["algorithm"] for row in cold["rows"]] == ["isochrone", "HPA", "KEDA", "Ray Serve", "llm-d"]
    assert cold["best_other"] in ("HPA", "KEDA", "Ray Serve", "llm-d")
    (warm,) = json.loads(invoke("--course", "flash_crowd", "--json", "--seed", "3", "--warm", "8").output)["courses"]
    assert warm["rows"][0]["violations"]["mean"] < cold["rows"][0]["violations"]["mean"] / 2


def test_an_unknown_course_is_refused_in_one_sentence() -> None:
    result = invoke("--course", "flash_crowds")
    assert result.exit_code == 1
    assert "--course" in result.output
    assert "flash_crowd" in result.output
    assert result.output.count("\n") == 1
