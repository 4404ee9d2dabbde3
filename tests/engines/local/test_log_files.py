"""Log files: set aside at a start, cut while they are written to, never more than so many."""

from __future__ import annotations

import os
from pathlib import Path

from isochrone.engines.local.log_files import LogFiles


def _write(files: LogFiles, text: str) -> None:
    descriptor = files.open("w")
    os.write(descriptor, text.encode())
    os.close(descriptor)


def test_a_start_sets_the_last_log_aside_and_keeps_a_few(tmp_path: Path) -> None:
    files = LogFiles(tmp_path / "logs", kept=2)
    for number in range(5):
        files.rotate("w")
        _write(files, f"{number}")
    assert {path.name: path.read_text() for path in files.directory.iterdir()} == {
        "w.log": "4",
        "w.log.1": "3",
        "w.log.2": "2",
    }


def test_an_empty_log_is_not_worth_keeping(tmp_path: Path) -> None:
    files = LogFiles(tmp_path)
    files.rotate("w")
    _write(files, "")
    files.rotate("w")
    assert [path.name for path in tmp_path.iterdir()] == ["w.log"]


def test_a_log_that_grows_too_large_is_cut_under_its_writer(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, most_bytes=10)
    descriptor = files.open("w")
    try:
        os.write(descriptor, b"0123456789")
        assert not files.bound("w")
        os.write(descriptor, b"!")
        assert files.bound("w")
        os.write(descriptor, b"after")
    finally:
        os.close(descriptor)
    assert files.path("w").read_bytes() == b"after"
    assert (tmp_path / "w.log.1").read_bytes() == b"0123456789!"
    assert not files.bound("another")


def test_the_last_lines_for_people(tmp_path: Path) -> None:
    files = LogFiles(tmp_path)
    _write(files, "one\n\n" + "x" * 20000 + "\ntwo\nthree\n")
    assert files.last_lines("w", 2) == ["two", "three"]
    assert files.last_lines("nobody") == []
