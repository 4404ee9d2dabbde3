"""The fleet of a bare ``isochrone up``: whole, right, servable without onnx, and never written over."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isochrone.control.fleet import bundled
from isochrone.control.fleet.bundled.writing import files, write_bundled
from isochrone.control.fleet.derived.processes import processes
from isochrone.control.fleet.reading.catalog import available_versions, catalog
from isochrone.control.fleet.reading.parsing import load_fleet
from isochrone.models.repository.digest import digest
from isochrone.models.repository.repository import Repository


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_bundled(tmp_path / "fleet")


def model(path: Path, name: str, version: int) -> Any:
    made = runpy.run_path(str(path.parent / "models" / name / str(version) / "model.py"))["Model"]()
    made.load(SimpleNamespace(model_version=str(version)))
    return made


def test_it_is_what_newcomers_are_told(path: Path) -> None:
    fleet = load_fleet(path)
    assert path.read_bytes() == files()["fleet.yaml"]
    found = processes(fleet, path.parent)
    assert list(found) == ["control-1", "gw", "cpu-1", "cpu-2", "cpu-3"]
    assert "127.0.0.1:8003" in found["control-1"].arguments
    assert "127.0.0.1:8000" in found["gw"].arguments
    assert fleet.models["pipeline"].rollout.cutover == "strict"


def test_every_model_has_two_versions_and_serves_the_first(path: Path) -> None:
    fleet = load_fleet(path)
    served = catalog(fleet, path.parent, str(path), path.read_text())
    assert {name: model.version for name, model in served.items()} == dict.fromkeys(
        ("preprocess", "detector", "pipeline"), "1"
    )
    assert served["pipeline"].stages == ("preprocess", "detector")
    for name in served:
        assert available_versions(fleet, name, path.parent) == [1, 2]


def test_configurations_are_right(path: Path) -> None:
    repository = Repository([path.parent / "models"])
    for name in ("preprocess", "detector", "pipeline"):
        config = repository.read(name).config
        assert config.name == name
        # Two versions of one digest could not be told apart.
        assert len({digest(config, path.parent / "models" / name / version) for version in ("1", "2")}) == 2


def test_versions_answer_differently_and_name_themselves(path: Path) -> None:
    pixels = np.arange(128, dtype=np.uint8).reshape(2, 64)
    scores = []
    for version in (1, 2):
        features = model(path, "preprocess", version).infer({"pixels": pixels})
        answer = model(path, "detector", version).infer({"features": features["features"]})
        for outputs in (features, answer):
            assert outputs["version"].dtype == np.int32
            assert outputs["version"].tolist() == [[version], [version]]
        assert features["features"].dtype == answer["scores"].dtype == np.float32
        assert answer["scores"].shape == (2, 4)
        assert answer["scores"].sum(axis=1) == pytest.approx([1, 1], abs=1e-5)
        scores.append(answer["scores"])
    assert np.abs(scores[0] - scores[1]).max() > 0.01


def test_nothing_needs_onnx_or_passes_for_a_module() -> None:
    for name, content in files().items():
        if name.endswith(".py"):
            assert b"onnx" not in content
    assert not list((Path(bundled.__file__).parent / "shipped").rglob("*.py"))


def test_what_is_there_is_left_alone(path: Path) -> None:
    path.write_text("name: mine")
    (path.parent / "models" / "detector" / "labels.txt").unlink()
    assert write_bundled(path.parent).read_text() == "name: mine"
    assert (path.parent / "models" / "detector" / "labels.txt").read_text().startswith("clear\n")
    assert not list(path.parent.rglob(".*"))


def test_it_is_shipped_with_the_package() -> None:
    names = set(files())
    assert {
        "fleet.yaml",
        "models/pipeline/config.pbtxt",
        "models/detector/2/model.py",
        "models/pipeline/2/about.txt",
    } <= names
