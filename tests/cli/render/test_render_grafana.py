"""``isochrone render grafana``: what it writes, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from isochrone.cli.main import app

FILES = {
    "dashboards/isochrone-fleet.json",
    "dashboards/isochrone-model.json",
    "dashboards/isochrone-gateway.json",
    "dashboards/isochrone-worker.json",
    "dashboards/isochrone-control-plane.json",
    "provisioning/dashboards/isochrone.yaml",
    "provisioning/datasources/isochrone.yaml",
}


def _run(*words: object) -> Result:
    return CliRunner().invoke(app, ["render", "grafana", *map(str, words)])


def _files(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def test_it_writes_dashboards_and_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text("own\n")
    result = _run("--out", tmp_path, "--prometheus", "https://prometheus.example:9090/path")
    assert result.exit_code == 0, result.output
    assert _files(tmp_path) == {*FILES, "prometheus.yml"}
    (provider,) = yaml.safe_load((tmp_path / "provisioning/dashboards/isochrone.yaml").read_text())["providers"]
    assert provider["options"]["path"] == str(tmp_path / "dashboards")
    (source,) = yaml.safe_load((tmp_path / "provisioning/datasources/isochrone.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "https://prometheus.example:9090/path")
    for name in FILES:
        if name.endswith(".json"):
            assert json.loads((tmp_path / name).read_text())["panels"]


def test_paths_as_json_and_a_path_of_grafanas_own(tmp_path: Path) -> None:
    said = json.loads(_run("--out", tmp_path, "--path", "/var/lib/grafana/isochrone", "--json").stdout)
    assert (said["directory"], set(said["files"])) == (str(tmp_path), FILES)
    (provider,) = yaml.safe_load((tmp_path / "provisioning/dashboards/isochrone.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/isochrone"


@pytest.mark.parametrize("given", ["prometheus:9090", "ftp://host", "http://", "http://host:0", "http://host:x", ""])
def test_an_address_of_prometheus_is_a_url(tmp_path: Path, given: str) -> None:
    result = _run("--out", tmp_path, "--prometheus", given)
    assert result.exit_code == 1
    assert "--prometheus: expected http://HOST:PORT or https://HOST:PORT" in result.output.replace("\n", " ")
    assert not _files(tmp_path)


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = _run("--out", tmp_path / "file")
    assert result.exit_code == 1
    assert "--out: expected a directory that can be written" in result.output.replace("\n", " ")


def test_without_grafanas_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("grafana_foundation_sdk") or name == "isochrone.monitoring.dashboards.building":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grafana_foundation_sdk", None)
    result = _run("--out", tmp_path)
    assert result.exit_code == 1
    assert "pip install 'isochrone[grafana]'" in result.output.replace("\n", " ")
    assert not _files(tmp_path)
