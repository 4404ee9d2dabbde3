"""Versions and models are written whole, and what a killed command left is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.errors import ConfigError
from isochrone.optimize.publishing.places import Place
from isochrone.optimize.publishing.versions import publish


@pytest.fixture
def built(tmp_path: Path) -> Path:
    directory = tmp_path / "built" / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.onnx").write_bytes(b"new")
    (directory / "config.pbtxt").write_text('name: "m"\n')
    return directory


def test_a_version_follows_the_newest_and_its_report_is_beside_the_models(tmp_path: Path, built: Path) -> None:
    repository = tmp_path / "models"
    (repository / "m" / "3").mkdir(parents=True)
    (repository / ".isochrone-optimize-999999999").mkdir()
    written, report = publish(Place(repository, "m", False), built, {"report.json": "{}"})
    assert written == repository / "m" / "4"
    assert [path.name for path in written.iterdir()] == ["model.onnx"]
    assert report == repository / ".reports" / "m" / "4"
    assert sorted(path.name for path in repository.iterdir()) == [".reports", "m"]
    assert sorted(path.name for path in (repository / "m").iterdir()) == ["3", "4"]


def test_a_model_that_appeared_meanwhile_is_not_replaced(tmp_path: Path, built: Path) -> None:
    (tmp_path / "fast" / "1").mkdir(parents=True)
    with pytest.raises(ConfigError, match="does not exist yet"):
        publish(Place(tmp_path, "fast", True), built, {})
    assert not list(tmp_path.glob(".isochrone*"))
    assert not (tmp_path / "fast" / "config.pbtxt").exists()
