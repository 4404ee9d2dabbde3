"""Files that are complete or absent, whatever fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isochrone.whole_files import write_whole


def test_a_file_is_written_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "über")
    assert path.read_bytes() == "über".encode()
    write_whole(path, b"\x00other")
    assert path.read_bytes() == b"\x00other"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_earlier_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, "before")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_private_whatever_the_umask_and_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("before")
    path.chmod(0o666)
    before = os.umask(0)
    try:
        write_whole(path, b"secret", 0o600)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == b"secret"
    assert list(tmp_path.iterdir()) == [path]
