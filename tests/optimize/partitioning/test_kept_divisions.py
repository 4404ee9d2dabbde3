"""Which divisions are kept within a bound of memory, and that a failed write leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divided_repository import write_divided
from isochrone.errors import AlreadyExists, InvalidArgument
from isochrone.models.divisions import read_divisions
from isochrone.optimize.partitioning import writing
from isochrone.optimize.partitioning.keeping import Candidate, kept

CANDIDATES = (
    Candidate("edge", 0.030, 100, 0),
    Candidate("core", 0.020, 0, 100),
    Candidate("cut-3", 0.010, 40, 60),
    Candidate("cut-9", 0.012, 60, 40),
)


def test_the_chosen_one_comes_first_then_the_edge_then_the_fastest() -> None:
    assert kept(CANDIDATES, "cut-9", 1000) == ["cut-9", "edge", "cut-3", "core"]


def test_what_does_not_fit_is_left_out() -> None:
    # The edge has 160 of 170 after the first two; the core 40, and 140 with its own.
    assert kept(CANDIDATES, "cut-9", 170) == ["cut-9", "edge", "core"]


def test_a_bound_below_the_chosen_one_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match=r"--keep-memory: expected at least the 60 bytes .* given 59"):
        kept(CANDIDATES, "cut-9", 59)


def test_files_that_divisions_share_count_once() -> None:
    shared = [Candidate("cut-3", 0.01, 40, 60, "cut-3"), Candidate("cut-3-zstd", 0.02, 40, 60, "cut-3")]
    assert kept(shared, "cut-3-zstd", 60) == ["cut-3-zstd", "cut-3"]
    assert kept([*shared, Candidate("cut-4", 0.01, 1, 1, "cut-4")], "cut-3", 60) == ["cut-3", "cut-3-zstd"]


sizes = st.integers(0, 50)


@given(st.lists(st.tuples(st.floats(0, 1), sizes, sizes), min_size=1, max_size=8), st.data())
def test_the_bound_holds_on_each_tier(figures: list[tuple[float, int, int]], data: st.DataObject) -> None:
    names = ["edge", *(f"cut-{number}" for number in range(len(figures) - 1))]
    candidates = [Candidate(name, *each) for name, each in zip(names, figures, strict=True)]
    chosen = data.draw(st.sampled_from(candidates))
    most = data.draw(st.integers(max(chosen.edge_bytes, chosen.core_bytes), 200))
    found = kept(candidates, chosen.division, most)
    assert found[0] == chosen.division
    assert len(set(found)) == len(found)
    stay = [each for each in candidates if each.division in found]
    assert sum(each.edge_bytes for each in stay) <= most
    assert sum(each.core_bytes for each in stay) <= most


def test_a_divided_model_is_written_with_its_figures(tmp_path: Path) -> None:
    write_divided(tmp_path / "d", "core:8000", {"cut-6": (0.001, 0.002), "edge": (0.004, 0.0), "core": (0.0, 0.003)})
    file = tmp_path / "d" / "edge" / "net" / "1" / "divisions.json"
    plan = read_divisions(file.read_bytes(), str(file))
    assert plan.present == "cut-6"
    assert [(each.name, each.model, each.edge_ns, each.core_ns) for each in plan.divisions] == [
        ("cut-6", "net.cut-6", 1_000_000, 2_000_000),
        ("edge", "net.edge", 4_000_000, 0),
        ("core", "net.core", 0, 3_000_000),
    ]
    for division in plan.divisions[:2]:
        files = (tmp_path / "d" / "edge").glob(f"{division.model}*/1/model.onnx")
        assert division.memory_bytes == sum(each.stat().st_size for each in files)
    edge = {each.name for each in (tmp_path / "d" / "edge").iterdir()}
    core = {each.name for each in (tmp_path / "d" / "core").iterdir()}
    assert edge == {"net", "net.cut-6", "net.cut-6_1", "net.cut-6_2", "net.edge", "net.core", "net.probe"}
    # In a fleet, one name is one model: none is on both tiers.
    assert core == {"net.cut-6_2.core", "net.core.core", "net.probe.core"}


def test_a_cut_with_compression_shares_the_stages(tmp_path: Path) -> None:
    seconds = {"cut-6-zstd": (0.003, 0.002), "cut-6": (0.001, 0.002), "edge": (0.004, 0.0)}
    write_divided(tmp_path / "d", "core:8000", seconds)
    file = tmp_path / "d" / "edge" / "net" / "1" / "divisions.json"
    first, second, _ = read_divisions(file.read_bytes(), str(file)).divisions
    assert first.memory_bytes > 0
    assert second.memory_bytes == 0
    edge = {each.name for each in (tmp_path / "d" / "edge").glob("net.cut*")}
    core = {each.name for each in (tmp_path / "d" / "core").glob("net.cut*")}
    both = {"net.cut-6-zstd", "net.cut-6-zstd_1", "net.cut-6-zstd_2"}
    assert (edge, core) == ({*both, "net.cut-6", "net.cut-6_2"}, {"net.cut-6-zstd_2.core"})
    config = (tmp_path / "d" / "edge" / "net.cut-6_2" / "config.pbtxt").read_text()
    assert 'string_value: "net.cut-6-zstd_2.core"' in config
    assert "compression" not in config


def test_a_failure_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bytes:
        raise OSError("no space")

    monkeypatch.setattr(writing, "write_divisions", full)
    with pytest.raises(OSError, match="no space"):
        write_divided(tmp_path / "d", "core:8000", {"edge": (0.004, 0.0), "core": (0.0, 0.003)})
    assert not list(tmp_path.iterdir())


def test_an_existing_directory_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(AlreadyExists):
        write_divided(tmp_path, "core:8000", {"edge": (0.004, 0.0)})
