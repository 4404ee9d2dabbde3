"""Who may write to the directories of a cache."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from isochrone.errors import ConfigError
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.models.sources.cache.ownership import is_trusted


@pytest.mark.parametrize(
    ("owner", "group", "mode", "trusted"),
    [
        pytest.param(0, 10001, 0o2777, True, id="an emptyDir with fsGroup"),
        pytest.param(0, 10001, 0o2775, True, id="a volume with fsGroup"),
        pytest.param(0, 0, 0o755, True, id="of root alone"),
        pytest.param(0, 0, 0o1777, True, id="as /tmp"),
        pytest.param(0, 0, 0o777, False, id="an emptyDir without fsGroup"),
        pytest.param(0, 0, 0o2777, False, id="for another group"),
        pytest.param(0, 10001, 0o775, False, id="for a group of people"),
        pytest.param(1000, 10001, 0o2775, False, id="of another user, for our group"),
        pytest.param(1000, 1000, 0o700, False, id="of another user"),
    ],
)
def test_which_directories_of_others_are_trusted(owner: int, group: int, mode: int, trusted: bool) -> None:
    assert is_trusted(owner, group, stat.S_IFDIR | mode, {10001, 20}) is trusted


def test_directories_of_our_own_become_private(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs").chmod(0o777)
    tmp_path.chmod(0o2777)
    ModelCache(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o2755
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if path.is_dir()}
    assert modes == dict.fromkeys(("blobs", "objects", "listings", "downloads", "trees"), 0o700)


@pytest.mark.parametrize("place", [".", "blobs"])
def test_a_directory_that_others_may_write_to_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    ModelCache(tmp_path)
    (tmp_path / place).chmod(0o777)
    owned = os.geteuid()
    # Root can make this directory for another user; others cannot.
    monkeypatch.setattr(os, "geteuid", lambda: owned + 1)
    with pytest.raises(ConfigError) as raised:
        ModelCache(tmp_path)
    assert f"model cache: {tmp_path / place}" in str(raised.value)
    assert "mode 0777" in str(raised.value)
    assert "--model-cache" in str(raised.value)
