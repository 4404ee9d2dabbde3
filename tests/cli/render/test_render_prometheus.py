"""``isochrone render prometheus``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from isochrone.cli.main import app
from isochrone.engines.kubernetes.packaging.yaml_text import MARK

FLEET = "name: demo\ndefaults: {slo: {deadline_ms: 50}}\n"


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


def _run(*words: object) -> Result:
    return CliRunner().invoke(app, ["render", "prometheus", *map(str, words)])


def test_without_a_directory_it_prints_the_rules(fleet: Path) -> None:
    result = _run(fleet)
    assert result.exit_code == 0, result.output
    document = yaml.safe_load(result.stdout)
    assert document["groups"][0]["name"] == "isochrone-demo-recording"
    assert json.loads(_run(fleet, "--json").stdout) == document


def test_with_a_directory_it_writes_two_files_and_keeps_others(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "own.rules.yaml").write_text("groups: []\n")
    result = _run(fleet, "--out", out)
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {"own.rules.yaml", "prometheus.yml", "isochrone-demo.rules.yaml"}
    configuration = yaml.safe_load((out / "prometheus.yml").read_text())
    assert configuration["rule_files"] == ["isochrone-demo.rules.yaml"]
    assert configuration["scrape_configs"][1]["http_sd_configs"][0]["url"].startswith("http://127.0.0.1:8003/")
    # A directory may hold the rules of several fleets, and manifests.
    manifest = out / "10-gateway.yaml"
    manifest.write_text(f"{MARK}\n---\nkind: Service\n")
    fleet.write_text(FLEET.replace("demo", "plant"))
    said = json.loads(_run(fleet, "--out", out, "--json").stdout)
    assert said["files"] == ["prometheus.yml", "isochrone-plant.rules.yaml"]
    assert manifest.exists()
    assert (out / "isochrone-demo.rules.yaml").exists()
    assert not (out / "isochrone-demo.rules.yaml").read_text().startswith(MARK)


def test_servers_without_a_fleet(tmp_path: Path) -> None:
    result = _run("--worker", "10.0.0.7:8002", "--gateway", "10.0.0.8:9002", "--name", "bench", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    (job,) = yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]
    assert [each["targets"] for each in job["static_configs"]] == [["10.0.0.7:8002"], ["10.0.0.8:9002"]]
    assert "isochrone_controller" not in (tmp_path / "isochrone-bench.rules.yaml").read_text()
    assert _run("--out", tmp_path / "default").exit_code == 0
    (job,) = yaml.safe_load((tmp_path / "default" / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:8002"]


def test_the_links_lead_where_the_flag_says(fleet: Path) -> None:
    printed = json.loads(_run(fleet, "--runbooks", "https://wiki.example/isochrone/", "--json").stdout)
    links = {
        rule["annotations"]["runbook_url"] for group in printed["groups"] for rule in group["rules"] if "alert" in rule
    }
    assert "https://wiki.example/isochrone/worker-down.md" in links
    assert len(links) == 24


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("missing.yaml",), "missing.yaml: no such file"),
        (("--discovery", "dns"), "--discovery: expected one of http, static, kubernetes, given 'dns'"),
        (("--objective", "100"), "--objective: expected a share above 0% and below 100%"),
        (("--worker", "nowhere"), "--worker: expected HOST:PORT of a metrics page"),
        (("--controller", "10.0.0.1:8003"), "--controller: expected a fleet.yaml beside it"),
        (("--name", "Not Valid"), "--name: expected a name"),
    ],
)
def test_mistakes_are_named(words: tuple[str, ...], said: str) -> None:
    result = _run(*words)
    assert result.exit_code == 1
    assert said in result.output.replace("\n", " ")


def test_mistakes_beside_a_file_are_named(fleet: Path, tmp_path: Path) -> None:
    for words, said in (
        (("--worker", "10.0.0.7:8002"), "--worker: expected no fleet.yaml beside it"),
        (("--name", "other"), "--name: expected no fleet.yaml beside it"),
        (("--controller", "http://10.0.0.1:8003"), "--controller: expected HOST:PORT of a controller"),
        (("--controller", "a:1", "--controller", "b:1"), "--controller: expected at most 1, by control.count"),
        (("--discovery", "static"), "pools.cpu.first_port: expected a fixed port"),
        (("--out", fleet), "--out: expected a directory that can be written"),
    ):
        result = _run(fleet, *words)
        assert result.exit_code == 1
        assert said in result.output.replace("\n", " ")
    fleet.write_text("name: demo\nmodles: {}\n")
    result = _run(fleet)
    assert result.exit_code == 1
    assert "did you mean 'models'?" in result.output.replace("\n", " ")
