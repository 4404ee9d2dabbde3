"""The version that a search begins from, and the configuration of what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isochrone.errors import ConfigError
from isochrone.optimize.trials.origins import REPORT_FILE, REPORTS, origin_of
from isochrone.optimize.trials.source import of_repository


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "models" / "m"
    for version in (1, 2, 3):
        (directory / str(version)).mkdir(parents=True)
        (directory / str(version) / "model.onnx").write_bytes(b"%d" % version)
    return directory


def write_report(model: Path, version: int) -> None:
    folder = model.parent / REPORTS / model.name / str(version)
    folder.mkdir(parents=True)
    origin = origin_of(model / str(version) / "model.onnx", model / "1" / "model.onnx")
    (folder / REPORT_FILE).write_text(json.dumps({"origin": origin}))


def test_the_newest_version_that_was_not_optimized_is_the_reference(model: Path) -> None:
    assert of_repository(model.parent, "m").version == 3
    write_report(model, 3)
    assert of_repository(model.parent, "m").version == 2
    assert of_repository(model.parent, "m", 3).version == 3
    with pytest.raises(ConfigError, match="a version of 'm': 1, 2, 3, given 4"):
        of_repository(model.parent, "m", 4)


def test_a_version_that_replaced_an_optimized_one_is_nobodys_result(model: Path) -> None:
    write_report(model, 3)
    (model / "3" / "model.onnx").write_bytes(b"the author's own")
    assert of_repository(model.parent, "m").version == 3


def test_a_model_of_results_alone_needs_a_version(model: Path) -> None:
    for version in (1, 2, 3):
        write_report(model, version)
    with pytest.raises(ConfigError, match="--version N"):
        of_repository(model.parent, "m")
