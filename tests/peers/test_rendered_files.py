"""Rendered files and the programs that read them: kubectl's Kustomize, Go's templates (Helm's engine), promtool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from isochrone.engines.kubernetes.render.autoscaling import PENDING, PENDING_SERIES, adapter_values

pytestmark = pytest.mark.peers

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PEERS = ROOT / ".venv-peers"

Document = dict[str, Any]


def _program(name: str, *places: str) -> str:
    found = next((str(PEERS / place) for place in places if (PEERS / place).exists()), shutil.which(name))
    if found is None:
        pytest.skip(f"{name} is not there; make peers installs it")
    return found


def _load(text: str) -> list[Document]:
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each is not None]


def _by_key(found: list[Document]) -> dict[tuple[str, str], Document]:
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def _manifests(fleet: str) -> dict[tuple[str, str], Document]:
    paths = (DEPLOY / "manifests" / fleet).glob("*.yaml")
    return _by_key([each for path in paths for each in _load(path.read_text())])


def _kustomize(directory: Path) -> dict[tuple[str, str], Document]:
    program = _program("kubectl", "kubectl/usr/bin/kubectl")
    ended = subprocess.run(
        [program, "kustomize", str(directory)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return _by_key(_load(ended.stdout))


@pytest.fixture
def kustomization(tmp_path: Path) -> Path:
    """The example, with the keys of overlays as Kustomize 2.0 has them: that is the one in Debian's kubectl. Its
    ``bases`` and ``patchesStrategicMerge`` are today's ``resources`` and ``patches``."""
    copy = tmp_path / "tiers"
    shutil.copytree(DEPLOY / "kustomize" / "tiers", copy)
    for path in copy.glob("overlays/*/kustomization.yaml"):
        document = _load(path.read_text())[0]
        document["bases"] = document.pop("resources")
        document["patchesStrategicMerge"] = [patch["path"] for patch in document.pop("patches")]
        path.write_text(yaml.safe_dump(document))
    return copy


def test_kustomize_makes_the_manifests_of_the_base(kustomization: Path) -> None:
    assert _kustomize(kustomization / "base") == _manifests("tiers")


def test_kustomize_merges_the_overlays(kustomization: Path) -> None:
    base = _kustomize(kustomization / "base")
    dev = _kustomize(kustomization / "overlays" / "dev")
    assert dev.keys() == base.keys()
    assert {
        key: each["spec"].get("replicas") for key, each in dev.items() if key[0] in ("StatefulSet", "Deployment")
    } == {
        ("Deployment", "control"): 1,
        ("StatefulSet", "gw"): 1,
        ("StatefulSet", "edge"): 1,
        ("StatefulSet", "core"): None,
    }
    before, after = (each["StatefulSet", "edge"]["spec"]["template"]["spec"]["containers"][0] for each in (base, dev))
    assert after["resources"]["requests"] == {**before["resources"]["requests"], "cpu": "100m"}
    assert {**after, "resources": {}} == {**before, "resources": {}}
    production = _kustomize(kustomization / "overlays" / "production")
    changed = {key for key in base if base[key] != production[key]}
    assert changed <= {("Deployment", "control"), ("StatefulSet", "gw")}


def test_gos_templates_make_the_manifests_of_the_chart(tmp_path: Path) -> None:
    program = _program("go", "go/bin/go")
    chart = DEPLOY / "helm" / "small"
    templates = {path.name: path.read_text() for path in (chart / "templates").glob("*.*")}
    data = {
        "Values": _load((chart / "values.yaml").read_text())[0],
        "Release": {"Namespace": "small", "Service": "isochrone-render"},
    }
    ended = subprocess.run(
        [program, "run", str(Path(__file__).with_name("chart_templates.go"))],
        input=json.dumps({"templates": templates, "data": data}),
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "GOCACHE": str(tmp_path / "cache"), "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rendered = json.loads(ended.stdout)
    assert "{{" not in "".join(rendered.values())
    made = _by_key([each for name, text in rendered.items() if name.endswith(".yaml") for each in _load(text)])
    plain = _by_key(
        [each for path in (DEPLOY / "manifests" / "small").glob("*.yaml") for each in _load(path.read_text())]
    )
    del plain["Namespace", "small"]
    assert _without_empty(made) == _without_empty(plain)


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in ({}, [])}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


def test_promtool_understands_the_adapters_query(tmp_path: Path) -> None:
    program = _program("promtool", "prometheus/usr/bin/promtool")
    (rule,) = adapter_values()["rules"]["custom"]
    # What the adapter puts in for its own marks.
    query = (
        rule["metricsQuery"]
        .replace("<<.Series>>", PENDING_SERIES)
        .replace("<<.LabelMatchers>>", 'namespace="small",pod=~"cpu-1|cpu-2"')
        .replace("<<.GroupBy>>", "pod")
    )
    assert "<<" not in query
    groups = [
        {"name": "adapter", "rules": [{"record": PENDING, "expr": query}, {"record": "s", "expr": rule["seriesQuery"]}]}
    ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    series = [f'{PENDING_SERIES}{{namespace="small",pod="cpu-1",model="{model}"}}' for model in "ab"]
    test = {
        "rule_files": ["rules.yaml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": each, "values": "3+0x5"} for each in series],
                "promql_expr_test": [
                    {"expr": query, "eval_time": "1m", "exp_samples": [{"labels": '{pod="cpu-1"}', "value": 6}]}
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    for words in (["check", "rules", "rules.yaml"], ["test", "rules", "test.yaml"]):
        ended = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
