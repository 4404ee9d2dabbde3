"""What a run measured: its file, its parts from several processes, and its bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.bench.messages import columns_of, columns_size, outcomes_of
from isochrone.bench.recording import MOST_MESSAGES, OTHER_ERRORS, Recorder, added
from isochrone.bench.results.outcomes import FAILED, OK, GeneratorUse, Outcomes, Run, merged, read_run, write_run
from isochrone.errors import ConfigError


def recorded(*intended: int, kind: int = 0, begins: int = 1000, ends: int = 2000) -> Recorder:
    recorder = Recorder(begins, ends)
    for instant in intended:
        recorder.record(instant, instant + 1, instant + 2, instant + 3, OK, kind, "", 1)
    return recorder


def run_of(outcomes: Outcomes) -> Run:
    return Run(
        target="http://h:1",
        kinds=("a", "b"),
        rate=10.5,
        in_flight=None,
        seconds=2.0,
        started_at="2026-01-01T00:00:00.000+00:00",
        outcomes=outcomes,
        generators=(GeneratorUse(0.5, 1, 2, 3),),
        errors={"HTTP 500: no": 2},
    )


def same(one: Outcomes, other: Outcomes) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        and getattr(one, name).dtype == getattr(other, name).dtype
        for name in Outcomes.__slots__
    )


def test_only_the_measured_window_is_recorded() -> None:
    outcomes = recorded(999, 1000, 1500, 1999, 2000).outcomes()
    assert outcomes.intended_ns.tolist() == [0, 500, 999]
    assert (outcomes.ended_ns - outcomes.intended_ns == 3).all()
    assert (outcomes.first_ns - outcomes.intended_ns == 2).all()


def test_without_an_answer_there_is_no_first_byte() -> None:
    recorder = Recorder(0, 100)
    recorder.record(10, 11, -1, 20, FAILED, 0, "broke", 0)
    assert recorder.outcomes().first_ns.tolist() == [-1]
    assert recorder.errors == {"broke": 1}
    assert recorder.counts[FAILED] == 1


@given(st.lists(st.integers(0, 999), max_size=20), st.lists(st.integers(0, 999), max_size=20))
def test_parts_are_merged_in_order_of_the_intended_instant(one: list[int], other: list[int]) -> None:
    parts = [
        recorded(*(1000 + instant for instant in each), kind=kind).outcomes() for kind, each in enumerate((one, other))
    ]
    whole = merged(parts)
    assert whole.intended_ns.tolist() == sorted(one + other)
    assert np.count_nonzero(whole.kind) == len(other)
    through_pipe = outcomes_of(len(whole), b"".join(columns_of(whole)))
    assert same(through_pipe, whole)
    assert columns_size(len(whole)) == sum(map(len, columns_of(whole)))


def test_messages_are_bounded() -> None:
    recorder = Recorder(0, 100)
    for number in range(100):
        recorder.record(1, 1, -1, 2, FAILED, 0, f"error {number}", 0)
    assert len(recorder.errors) == MOST_MESSAGES + 1
    assert recorder.errors[OTHER_ERRORS] == 100 - MOST_MESSAGES
    total = added([recorder.errors, {f"other {number}": 5 for number in range(10)}])
    assert len(total) == MOST_MESSAGES + 1
    assert sum(total.values()) == 150


def test_a_file_has_all_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    run = run_of(recorded(1500, 1200, kind=1).outcomes())
    write_run(path, run)
    found = read_run(path)
    assert same(found.outcomes, run.outcomes)
    for name in ("target", "kinds", "rate", "in_flight", "seconds", "started_at", "generators", "errors"):
        assert getattr(found, name) == getattr(run, name)
    assert [each.name for each in tmp_path.iterdir()] == ["run.npz"], "nothing unfinished is left"


def test_another_file_is_one_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    with pytest.raises(ConfigError, match="given no such file"):
        read_run(path)
    path.write_text("no archive")
    with pytest.raises(ConfigError, match=r"run.npz: file: expected a file that isochrone bench --output wrote"):
        read_run(path)
    np.savez(path, x=np.arange(3))
    with pytest.raises(ConfigError, match=r"expected a file that isochrone bench --output wrote"):
        read_run(path)
    write_run(path, run_of(recorded(1500, kind=7).outcomes()))
    with pytest.raises(ConfigError, match="a kind that the file does not have"):
        read_run(path)


@given(st.data())
def test_damaged_files_are_rejected_or_read(data: st.DataObject) -> None:
    """Any flipped byte: an error of ours, or the same run."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.npz"
        write_run(path, run_of(recorded(1500, 1200, kind=1).outcomes()))
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        try:
            read_run(path)
        except ConfigError:
            pass
