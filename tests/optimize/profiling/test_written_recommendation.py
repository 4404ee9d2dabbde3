"""How a recommended config.pbtxt replaces the old one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from isochrone.errors import ConfigError
from isochrone.models.repository.repository import Repository
from isochrone.optimize.profiling.results.recommended import Recommendation, write
from sample_models import write_config, write_python


def test_the_model_directory_holds_whole_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_python(tmp_path / "doubler", "class Model: ...")
    write_config(tmp_path / "doubler", 'backend: "python"')
    config = tmp_path / "doubler" / "config.pbtxt"
    old = config.read_text()
    before = Repository([tmp_path]).scan()["doubler"].config_fingerprint
    seen: list[bool] = []

    def watch(descriptor: int) -> None:
        seen.append(Repository([tmp_path]).scan()["doubler"].config_fingerprint == before)

    monkeypatch.setattr(os, "fsync", watch)
    kept = write(Recommendation(config, old + "# new\n", "a difference"))
    assert seen == [True]
    assert config.read_text() == old + "# new\n"
    assert kept is not None
    assert kept.read_text() == old
    assert [path.name for path in tmp_path.iterdir()] == ["doubler"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_python(tmp_path / "doubler", "class Model: ...")
    write_config(tmp_path / "doubler", 'backend: "python"')
    config = tmp_path / "doubler" / "config.pbtxt"
    old = config.read_bytes()

    def fail(*words: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match="No space left"):
        write(Recommendation(config, "# new\n", "a difference"))
    assert config.read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["doubler"]


def test_a_linked_file_is_replaced_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "m.pbtxt").write_text("old")
    (tmp_path / "models" / "m").mkdir(parents=True)
    config = tmp_path / "models" / "m" / "config.pbtxt"
    config.symlink_to(tmp_path / "elsewhere" / "m.pbtxt")
    write(Recommendation(config, "new", "a difference"))
    assert config.is_symlink()
    assert config.read_text() == "new"
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [
        "config.pbtxt.before-profile",
        "m.pbtxt",
    ]
