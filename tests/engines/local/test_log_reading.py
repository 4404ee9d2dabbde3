"""Log files are read from their end, and further through rotations and truncations."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isochrone.engines.local.log_files import LogFiles
from isochrone.engines.local.log_reading import LogReader, log_files


@pytest.fixture
def files(tmp_path: Path) -> LogFiles:
    return LogFiles(tmp_path, most_bytes=100)


def _write(files: LogFiles, text: str, name: str = "w") -> None:
    descriptor = files.open(name)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def test_the_files_are_listed_by_process_without_those_set_aside(files: LogFiles) -> None:
    for name in ("w-2", "w-1"):
        _write(files, "a\n", name)
    files.rotate("w-1")
    _write(files, "b\n", "w-1")
    assert list(log_files(files.directory)) == ["w-1", "w-2"]
    assert log_files(files.directory / "none") == {}


@pytest.mark.parametrize(("count", "expected"), [(0, []), (2, ["3", "4"]), (9, ["0", "1", "2", "3", "4"])])
def test_the_last_lines(files: LogFiles, count: int, expected: list[str]) -> None:
    _write(files, "".join(f"{number}\n" for number in range(5)))
    assert LogReader(files.path("w")).tail(count) == expected


def test_the_last_lines_of_a_file_much_larger_than_a_block(files: LogFiles) -> None:
    _write(files, "".join(f"{number:0100}\n" for number in range(20_000)))
    assert [int(line) for line in LogReader(files.path("w")).tail(5_000)] == list(range(15_000, 20_000))


def test_lines_are_told_once_they_are_whole(files: LogFiles) -> None:
    _write(files, "one\ntw")
    reader = LogReader(files.path("w"))
    assert reader.tail(10) == ["one"]
    assert reader.news() == []
    _write(files, "o\nthree\n\nfour")
    assert reader.news() == ["two", "three", ""]
    _write(files, "\n")
    assert reader.news() == ["four"]


def test_a_file_that_was_set_aside_loses_no_line(files: LogFiles) -> None:
    _write(files, "one\n")
    reader = LogReader(files.path("w"))
    reader.tail(1)
    _write(files, "two\n")
    files.rotate("w")
    _write(files, "three\n")
    assert reader.news() == ["two", "three"]


def test_a_file_that_was_cut_goes_on_from_its_beginning(files: LogFiles) -> None:
    _write(files, "x" * 200 + "\n")
    reader = LogReader(files.path("w"))
    reader.tail(1)
    assert files.bound("w")
    _write(files, "after\n")
    assert reader.news() == ["after"]


def test_a_file_that_comes_later_is_new_as_a_whole(files: LogFiles) -> None:
    reader = LogReader(files.path("w"))
    assert reader.tail(5) == []
    assert reader.news() == []
    _write(files, "one\n\xff\n")
    assert reader.news() == ["one", "\xff"]
