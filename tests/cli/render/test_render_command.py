"""``isochrone render kubernetes``: what it prints and writes, what it deletes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from isochrone.cli.main import app

FLEET = """\
name: demo
store: {url: "etcd:http://etcd:2379"}
pools: {cpu: {}, gpu: {gpus: 1}}
kubernetes: {require_secure: false}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


def _run(*words: object) -> Result:
    return CliRunner().invoke(app, ["render", "kubernetes", *map(str, words)])


def test_without_a_directory_it_prints_the_documents(fleet: Path) -> None:
    result = _run(fleet)
    assert result.exit_code == 0, result.output
    kinds = [document["kind"] for document in yaml.load_all(result.stdout, yaml.CSafeLoader)]
    assert kinds[0] == "Namespace"
    assert kinds.count("StatefulSet") == 3
    printed = json.loads(_run(fleet, "--json").stdout)
    assert [document["kind"] for document in printed] == kinds


def test_with_a_directory_it_writes_a_file_per_part(fleet: Path, tmp_path: Path) -> None:
    result = _run(fleet, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"6 files written to {tmp_path / 'out'}\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "00-namespace.yaml",
        "10-network.yaml",
        "20-control.yaml",
        "30-gateways-gw.yaml",
        "40-pool-cpu.yaml",
        "40-pool-gpu.yaml",
    ]


def test_a_second_rendering_deletes_what_is_gone_and_nothing_else(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _run(fleet, "--out", out)
    (out / "mine.yaml").write_text("kind: ConfigMap\n")
    untouched = (out / "40-pool-cpu.yaml").stat().st_mtime_ns
    fleet.write_text(FLEET.replace(", gpu: {gpus: 1}", ""))
    result = _run(fleet, "--out", out, "--json")
    answer = json.loads(result.stdout)
    assert answer["deleted"] == ["40-pool-gpu.yaml"]
    assert answer["directory"] == str(out)
    assert (out / "mine.yaml").exists()
    assert not (out / "40-pool-gpu.yaml").exists()
    assert (out / "40-pool-cpu.yaml").stat().st_mtime_ns == untouched
    assert "1 old file deleted" not in _run(fleet, "--out", out).stdout


@pytest.mark.parametrize("form", ["helm", "kustomize"])
def test_a_format_of_several_files_needs_a_directory(fleet: Path, tmp_path: Path, form: str) -> None:
    refused = _run(fleet, "--format", form)
    assert refused.exit_code == 2
    assert f"{form} makes a directory; name it with --out" in refused.output
    assert _run(fleet, "--format", form, "--out", tmp_path / form).exit_code == 0


@pytest.mark.parametrize(
    ("form", "kinds"),
    [("kserve", {"ClusterServingRuntime"}), ("kuberay", {"Namespace", "NetworkPolicy", "ConfigMap", "RayCluster"})],
)
def test_the_variants(fleet: Path, form: str, kinds: set[str]) -> None:
    result = _run(fleet, "--format", form)
    assert {each["kind"] for each in yaml.load_all(result.stdout, yaml.CSafeLoader)} == kinds


def test_an_unknown_format_names_the_known_ones(fleet: Path) -> None:
    result = _run(fleet, "--format", "terraform")
    assert result.exit_code == 2
    assert "expected one of manifests, engine, helm, kustomize, kserve, kuberay, given 'terraform'" in result.output


def test_errors_name_file_line_and_key(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("name: demo\npools:\n  cpu: {gpus: 0.5}\nkubernetes: {require_secure: false}\n")
    result = _run(path)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0].startswith(f"isochrone render: {path}:1: store.url: expected etcd:")
    assert lines[1].startswith(f"isochrone render: {path}:3: pools.cpu.gpus: expected a whole number of GPUs")
    path.write_text("name: demo\nkubernets: {}\n")
    assert "did you mean 'kubernetes'?" in _run(path).stderr
    assert "no such file" in _run(tmp_path / "none.yaml").stderr


def test_a_directory_that_cannot_be_made_is_an_error(fleet: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = _run(fleet, "--out", tmp_path / "file" / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("isochrone render: ")


def test_an_out_that_is_no_directory_is_named(fleet: Path) -> None:
    result = _run(fleet, "--out", fleet)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"isochrone render: --out: expected a directory that can be written, given {fleet}, which is a file\n"
    )
    result = _run(fleet, "--out", fleet / "below")
    assert result.exit_code == 1
    assert result.stderr.startswith("isochrone render: --out: expected a directory that can be written, given ")
    assert result.stderr.endswith("(Not a directory)\n")


def test_a_directory_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    result = _run(tmp_path)
    assert result.exit_code == 1
    assert result.stderr == f"isochrone render: {tmp_path}: is a directory; name a fleet.yaml\n"


def test_it_says_that_a_cluster_does_not_use_autoscale(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    pool = "{max: 3, autoscale: true}"
    store = 'store: {url: "etcd:http://etcd:2379"}'
    file.write_text(
        f"name: demo\n{store}\npools: {{cpu: {pool}, other: {{}}}}\nkubernetes: {{require_secure: false}}\n"
    )
    result = _run(file)
    assert result.exit_code == 0
    assert "pools.cpu: autoscale has no effect in a cluster" in result.stderr
    assert "pools.other" not in result.stderr
    assert "no effect" not in _run(file, "--format", "kuberay").stderr
