"""The models of the proof: each version tells its own number, and the broken ones break as they should."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.control.models import (
    SOLO,
    Service,
    copy_with_another_config,
    write_corrupt_version,
    write_large_version,
    write_repository,
    write_slower_version,
    write_version,
)


def _model(repository: Path, version: int) -> tuple[Any, dict[str, Any]]:
    names = runpy.run_path(str(repository / SOLO / str(version) / "model.py"))
    model = names["Model"]()
    model.load(SimpleNamespace(instance=0))
    return model, names


def test_each_version_tells_its_number_and_computes_the_same(tmp_path: Path) -> None:
    repository = write_repository(tmp_path, versions=3)
    for version in (1, 2, 3):
        model, _ = _model(repository, version)
        answer = model.infer({"X": np.full((1, 1), 21, dtype=np.float32)})
        assert answer["Y"].item() == 42
        assert answer["VERSION"].item() == version


@pytest.mark.parametrize("words", [["--name", "cpu-2"], ["--name=cpu-2"]])
def test_one_fails_on_the_named_worker_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    repository = write_repository(tmp_path, versions=1)
    write_version(repository, SOLO, 2, fails_on="cpu-2")
    given = {"X": np.zeros((1, 1), dtype=np.float32)}
    monkeypatch.setattr(sys, "argv", ["isochrone", "serve", "--name", "cpu-1"])
    assert _model(repository, 2)[0].infer(given)["VERSION"].item() == 2
    monkeypatch.setattr(sys, "argv", ["isochrone", "serve", *words])
    with pytest.raises(RuntimeError, match="does not run on worker cpu-2"):
        _model(repository, 2)[0].infer(given)


def test_a_corrupt_one_cannot_be_imported(tmp_path: Path) -> None:
    repository = write_repository(tmp_path, versions=1)
    write_corrupt_version(repository, SOLO, 2)
    with pytest.raises(SyntaxError):
        _model(repository, 2)


def test_a_slower_one_differs_in_its_time_alone(tmp_path: Path) -> None:
    service = Service(10.0, 0.3)
    repository = write_repository(tmp_path, versions=1, service=service)
    write_slower_version(repository, SOLO, 2, service, 1.3)
    _, names = _model(repository, 2)
    assert names["SERVICE_SECONDS"] == pytest.approx(0.013)
    assert names["SPREAD"] == 0.3


def test_a_large_one_has_its_size(tmp_path: Path) -> None:
    repository = write_repository(tmp_path, versions=1)
    write_large_version(repository, SOLO, 2, 1 << 20)
    assert (repository / SOLO / "2" / "weights.bin").stat().st_size == 1 << 20


def test_the_other_copy_has_another_digest_for_one_model_alone(tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "one", versions=1)
    other = copy_with_another_config(repository, tmp_path / "two", SOLO)
    for model, is_same in ((SOLO, False), ("stage_a", True), ("chain", True)):
        configs = [(directory / model / "config.pbtxt").read_text() for directory in (repository, other)]
        assert (configs[0] == configs[1]) is is_same
    assert "count: 3 " in (other / SOLO / "config.pbtxt").read_text()
