"""Versions and models are written whole, and what a killed command left is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.errors import ConfigError
from isochrone.optimize.publishing.places import Place, place_of
from isochrone.optimize.publishing.versions import publish
from isochrone.optimize.trials.source import of_repository


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


def test_no_version_appears_if_its_report_cannot_be_written(tmp_path: Path, built: Path) -> None:
    repository = tmp_path / "models"
    (repository / "m" / "1").mkdir(parents=True)
    (repository / ".reports").write_text("a file")
    with pytest.raises(ConfigError, match="a directory for the report"):
        publish(Place(repository, "m", False), built, {"report.json": "{}"})
    assert [path.name for path in (repository / "m").iterdir()] == ["1"]
    assert not list(repository.glob(".isochrone*"))


def test_a_version_that_cannot_be_written_leaves_no_report(tmp_path: Path, built: Path) -> None:
    (tmp_path / "fast" / "1").mkdir(parents=True)
    with pytest.raises(ConfigError, match="does not exist yet"):
        publish(Place(tmp_path, "fast", True), built, {"report.json": "{}"})
    assert not (tmp_path / ".reports" / "fast" / "1").exists()


@pytest.mark.parametrize("wrong", [".reports", ".reports/m"])
def test_a_place_for_the_report_is_checked_before_anything_is_measured(tmp_path: Path, built: Path, wrong: str) -> None:
    (tmp_path / wrong).parent.mkdir(exist_ok=True)
    built.rename(tmp_path / "m")
    source = of_repository(tmp_path, "m")
    assert place_of(source, None, "") == Place(tmp_path, "m", False)
    (tmp_path / wrong).write_text("a file")
    with pytest.raises(ConfigError, match="expected a directory, for reports, given a file"):
        place_of(source, None, "")
