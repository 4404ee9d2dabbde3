"""The rendered rules and configurations, as Prometheus' own tool reads and evaluates them: every alert fires by series
that are its reason, and by no others."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import CASES, HEALTHY, SILENT, Case
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.monitoring.alerts.catalog import all_alerts

pytestmark = pytest.mark.peers

ROOT = Path(__file__).resolve().parents[2]
FLEET = """
name: plant
control: {listen: "127.0.0.1:8003"}
gateways: {gw: {listen: "127.0.0.1:8000", metrics_port: 9000}}
pools: {cpu: {workers: 1, first_port: 8100}}
models:
  detector: {version: 1, slo: {deadline_ms: 100}}
  'a "strange" (name).*': {version: 1, slo: {deadline_ms: 120}}
"""


@pytest.fixture(scope="module")
def promtool() -> str:
    place = ROOT / ".venv-peers" / "prometheus" / "usr" / "bin" / "promtool"
    found = str(place) if place.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not there; make peers installs it")
    return found


def _rendered(directory: Path, *words: str) -> Path:
    (directory / "fleet.yaml").write_text(FLEET)
    result = CliRunner().invoke(app, ["render", "prometheus", *words, "--out", str(directory)])
    assert result.exit_code == 0, result.output
    return directory


def _run(promtool: str, directory: Path, *words: str) -> str:
    ended = subprocess.run([promtool, *words], cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("FILE",),
        ("FILE", "--discovery", "static"),
        ("FILE", "--discovery", "kubernetes"),
        ("--worker", "10.0.0.7:8002", "--gateway", "[::1]:9002"),
        (),
    ],
)
def test_promtool_accepts_every_rendering(promtool: str, tmp_path: Path, words: tuple[str, ...]) -> None:
    given = [str(tmp_path / "fleet.yaml") if word == "FILE" else word for word in words]
    directory = _rendered(tmp_path, *given)
    if "kubernetes" in words:
        _without_kubernetes(directory / "prometheus.yml")
    said = _run(promtool, directory, "check", "config", "prometheus.yml")
    assert "SUCCESS" in said
    (rules,) = directory.glob("*.rules.yaml")
    assert "rules found" in _run(promtool, directory, "check", "rules", "--lint-fatal", rules.name)


def _without_kubernetes(path: Path) -> None:
    """Debian builds Prometheus without the discovery of Kubernetes: the rest of the job is checked."""
    document = yaml.safe_load(path.read_text())
    (job,) = document["scrape_configs"]
    del job["kubernetes_sd_configs"]
    path.write_text(yaml.safe_dump(document))


def _test(
    name: str, series: Mapping[str, str], minutes: int, firing: Sequence[str], about: Case | None
) -> dict[str, Any]:
    """All alerts that fire are those that are named, once each."""
    expected = [{"labels": f'{{alertname="Isochrone{each}"}}', "value": 1} for each in sorted(firing)]
    looks = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minutes}m",
            "exp_samples": expected,
        }
    ]
    if about is not None:
        labels = ", ".join(f'{key}="{value}"' for key, value in about.labels.items())
        look = f'count(ALERTS{{alertname="Isochrone{about.alert}", alertstate="firing", {labels}}})'
        looks.append({"expr": look, "eval_time": f"{minutes}m", "exp_samples": [{"labels": "{}", "value": 1}]})
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": looks,
    }


def _check(promtool: str, directory: Path, tests: list[dict[str, Any]]) -> None:
    _rendered(directory, str(directory / "fleet.yaml"))
    document = {"rule_files": ["isochrone-plant.rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (directory / "test.yaml").write_text(yaml.safe_dump(document, sort_keys=False, width=1000))
    assert "SUCCESS" in _run(promtool, directory, "test", "rules", "test.yaml")


def test_every_alert_has_a_case() -> None:
    assert {each.name for each in all_alerts()} - {case.alert for case in CASES} == set()


def test_every_alert_fires_by_its_reason_and_alone(promtool: str, tmp_path: Path) -> None:
    tests = [
        _test(f"{case.alert} {number}", case.whole, case.minutes, (case.alert, *case.also), case)
        for number, case in enumerate(CASES)
    ]
    _check(promtool, tmp_path, tests)


def test_no_alert_fires_without_a_reason(promtool: str, tmp_path: Path) -> None:
    _check(
        promtool, tmp_path, [_test(name, {**HEALTHY, **series}, minutes, (), None) for name, series, minutes in SILENT]
    )


def test_a_case_can_fail(promtool: str, tmp_path: Path) -> None:
    """The tests above are of use: an alert that does not fire is a failure."""
    quiet = Case("CoreAway", {})
    with pytest.raises(AssertionError, match="FAILED"):
        _check(promtool, tmp_path, [_test("quiet", quiet.whole, 14, ("CoreAway",), quiet)])
