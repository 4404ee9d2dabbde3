"""Histories on disk: what is read is what was written, and a client that died is told from one that ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.control.history import ERROR, Answer, BrokenHistory, HistoryWriter, between, read

_ANSWERS = [
    Answer("c1", "127.0.0.1:1", "chain", 10, 20, "3", (("stage_a", "1"), ("stage_b", "2"))),
    Answer("c1", "127.0.0.1:2", "solo", 15, 18, outcome=ERROR, error='503 "no worker"\nat all'),
]


def _write(directory: Path, client: str, answers: list[Answer]) -> None:
    writer = HistoryWriter(directory, client)
    for answer in answers:
        writer.begin()
        writer.add(answer)
    writer.close()


def test_many_clients_are_read_as_one_history(tmp_path: Path) -> None:
    _write(tmp_path, "c1", _ANSWERS)
    _write(tmp_path, "c2", _ANSWERS * 600)
    assert read(tmp_path) == _ANSWERS + _ANSWERS * 600


def test_a_client_that_died_is_told(tmp_path: Path) -> None:
    _write(tmp_path, "c1", _ANSWERS)
    path = tmp_path / "c1.history"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(BrokenHistory, match="no end after 2 records"):
        read(tmp_path)
    path.write_bytes(lines[0] + lines[1][:20])
    with pytest.raises(BrokenHistory, match="record 2"):
        read(tmp_path)


def test_a_request_that_was_begun_and_never_recorded_is_told(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, "c1")
    writer.begin()
    writer.begin()
    writer.add(_ANSWERS[0])
    writer.close()
    with pytest.raises(BrokenHistory, match="expected 2 records"):
        read(tmp_path)


def test_no_history_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(BrokenHistory, match="given none"):
        read(tmp_path)


@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(0, 30)), max_size=20),
    st.lists(st.integers(0, 120), min_size=2, max_size=8, unique=True),
)
def test_between_takes_what_overlaps_a_window(spans: list[tuple[int, int]], edges: list[int]) -> None:
    edges = sorted(edges)[: len(edges) // 2 * 2]
    windows = list(zip(edges[::2], edges[1::2], strict=True))
    history = [Answer("c", "g", "m", start, start + length, "1") for start, length in spans]
    expected = [a for a in history if any(a.started_ns < until and a.ended_ns > since for since, until in windows)]
    assert between(history, windows) == expected
