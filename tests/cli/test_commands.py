"""Every command exists, and none imports the modules of another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isochrone.cli.commands import COMMANDS
from isochrone.cli.main import app


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_found_and_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage: " in result.output


def test_the_help_lists_them_all_in_order() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    listed = [line.split()[0] for line in output.splitlines() if line.startswith("  ") and line.split()[0] in COMMANDS]
    assert listed == list(COMMANDS)


def test_a_command_that_is_not_there_suggests_one_that_is() -> None:
    result = CliRunner().invoke(app, ["serv"])
    assert result.exit_code == 2
    assert "Did you mean 'serve'" in result.output


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--engine", "abacus"], "--engine: expected one of local, ray, kubernetes, given 'abacus'"),
        (["--address", "h:1"], "--address: expected --engine ray with it, given --engine local"),
        (
            ["--engine", "ray", "--address", "h"],
            "--address: expected HOST:PORT, ray://HOST:PORT or auto, given 'h'",
        ),
        (["--engine", "kubernetes", "--kubeconfig", "/nope"], "--kubeconfig: /nope: no such file"),
    ],
)
def test_up_refuses_an_engine_that_is_not_there(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["up", *words])
    assert result.exit_code == 1
    assert result.output == f"isochrone up: {error}\n"
    # Nothing is written for a fleet that cannot start.
    assert list(tmp_path.iterdir()) == []


_KUBECONFIG = "clusters: [{name: a}]\ncontexts: [{name: a}]\ncurrent-context: a\n"


def test_up_in_a_cluster_needs_a_file_and_writes_nothing_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(_KUBECONFIG)
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    options = ["up", "--engine", "kubernetes", "--kubeconfig", str(kubeconfig)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 1
    assert result.output == (
        "isochrone up: --engine kubernetes: name a FLEET.yaml whose store is etcd; "
        "the bundled fleet has a SQLite file, which pods cannot share\n"
    )
    assert list(directory.iterdir()) == []


def test_up_in_a_cluster_rejects_a_store_in_a_file_before_it_is_made(tmp_path: Path) -> None:
    kubeconfig, fleet = tmp_path / "config", tmp_path / "fleet.yaml"
    kubeconfig.write_text(_KUBECONFIG)
    fleet.write_text("name: demo\n")
    result = CliRunner().invoke(app, ["up", str(fleet), "--engine", "kubernetes", "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 1
    assert f"isochrone up: {fleet}:1: store.url: expected etcd:http://HOST:2379" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"config", "fleet.yaml"}


def test_up_in_a_cluster_rejects_a_fleet_whose_pods_would_not_start(tmp_path: Path) -> None:
    kubeconfig, fleet = tmp_path / "config", tmp_path / "fleet.yaml"
    kubeconfig.write_text(_KUBECONFIG)
    fleet.write_text("name: demo\nstore: {url: 'etcd:http://127.0.0.1:1'}\n")
    result = CliRunner().invoke(app, ["up", str(fleet), "--engine", "kubernetes", "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 1
    assert f"isochrone up: {fleet}:1: kubernetes.require_secure: expected false, or security.tls" in result.output


@pytest.mark.parametrize(
    ("words", "never"),
    [
        (
            ["--help"],
            "isochrone.cli.processes.serve isochrone.cli.simulate isochrone.cli.fleet.changing.up"
            " isochrone.cli.requests.infer numpy",
        ),
        (["serve", "--help"], "isochrone.simulate isochrone.control isochrone.gateway httpx starlette uvicorn"),
        (["gateway", "--help"], "isochrone.simulate isochrone.worker httpx starlette uvicorn"),
        (["up", "--help"], "isochrone.simulate isochrone.worker httpx starlette uvicorn"),
    ],
)
def test_a_process_imports_only_what_it_needs(words: list[str], never: str) -> None:
    code = (
        "import sys\nfrom isochrone.cli.main import app\n"
        f"try:\n    app({words!r})\nexcept SystemExit:\n    pass\n"
        f"print('imported:', *[name for name in {never.split()!r} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == "imported:"
