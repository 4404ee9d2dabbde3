"""How the GPU benches divide a limit, and what they record of the build that they measure."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu import __main__ as every
from bench.gpu.budget import Need, rounds_within, scaled, share
from bench.gpu.build import commit, source_digest
from bench.gpu.figures import ResultsFile
from bench.gpu.generation.__main__ import PARTS
from bench.gpu.models.specs import ENCODER, RESNET, TINY, TWO_TOWER
from bench.gpu.serve import __main__ as serve
from bench.gpu.serve.cells import by_model, plan
from bench.gpu.serve.report import unmeasured
from bench.gpu.two_tower import __main__ as two_tower
from isochrone.build_info import IS_COMPILED


def shares(limit: float, needs: list[Need]) -> list[float]:
    """If each uses the whole of its share."""
    found: list[float] = []
    for number in range(len(needs)):
        found.append(share(limit - sum(found), needs[number:]))
    return found


@pytest.mark.parametrize("limit", [30.0, 100.0, 250.0, 400.0, 900.0])
def test_shares_use_the_limit_and_no_more(limit: float) -> None:
    needs = [Need(20, 60), Need(50, 300), Need(30, 40)]
    found = shares(limit, needs)
    assert sum(found) == pytest.approx(limit)
    if limit >= 100:
        assert all(each >= need.least - 1e-9 for each, need in zip(found, needs, strict=True))
    if limit >= 400:
        assert all(each >= need.full - 1e-9 for each, need in zip(found, needs, strict=True))


def test_what_one_does_not_use_is_there_for_the_next() -> None:
    needs = [Need(20, 60), Need(50, 300)]
    assert share(250 - 20, needs[1:]) > shares(250, needs)[1]


def test_every_program_has_its_least_within_ten_minutes() -> None:
    """560 s of a limit, 40 of them for the end of the last one."""
    needs = [program.need for program in every.PROGRAMS]
    assert all(each >= need.least for each, need in zip(shares(520, needs), needs, strict=True))
    parts = [need for _, need in PARTS.values()]
    generation = next(program.need for program in every.PROGRAMS if program.name == "generation")
    assert sum(need.full for need in parts) <= generation.full


def test_fewer_rounds_rather_than_none() -> None:
    assert rounds_within(100, 3, 30) == 3
    assert rounds_within(70, 3, 30) == 2
    assert rounds_within(10, 3, 30) == 1
    assert rounds_within(-5, 3, 30) == 1


def test_shorter_figures_but_not_below_the_least() -> None:
    assert scaled(100, 90, 2.0, 0.5) == 2.0
    assert scaled(100, 200, 2.0, 0.5) == 1.0
    assert scaled(100, 2000, 2.0, 0.5) == 0.5
    assert scaled(100, 2000, 0.3, 0.5) == 0.3


def test_what_does_not_become_shorter_is_taken_from_the_others() -> None:
    assert scaled(100, 190, 2.0, 0.5, fixed=10) == 1.0
    assert scaled(100, 90, 2.0, 0.5, fixed=10) == 2.0
    assert scaled(5, 190, 2.0, 0.5, fixed=10) == 0.5


@pytest.mark.parametrize(
    ("left", "rounds", "seconds"), [(340, 3, 2.0), (180, 2, 2.0), (75, 1, 2.0), (53.3, 1, 1.40), (40, 1, 0.96)]
)
def test_serve_fits_a_whole_round_into_the_share_of_a_model(left: float, rounds: int, seconds: float) -> None:
    cells = len(plan(["a"], 256))
    pace = serve.fit(cells, serve.Pace(3, 2.0, 0.5), left)
    assert (pace.rounds, pace.seconds) == (rounds, pytest.approx(seconds, abs=0.01))
    # 0.3 s for the connections of a cell, and four raw figures.
    assert pace.rounds * (cells * (pace.seconds + pace.warm + 0.3) + 4 * min(1.0, pace.seconds)) <= left + 1e-6


def test_serve_has_a_worker_for_each_model_whose_variants_fit_into_torchs_streams() -> None:
    cells = plan([RESNET, ENCODER, TWO_TOWER], 256)
    found = by_model(cells)
    assert [cell for own in found.values() for cell in own] == cells
    assert list(found) == [RESNET, ENCODER, TWO_TOWER]
    for model, own in found.items():
        assert {cell.model for cell in own} == {model}
        assert 3 * len({cell.served_model for cell in own}) <= 32


class Clock:
    """Each worker takes 10 seconds to be ready, and each cell its seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_serve_divides_its_limit_between_the_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock()
    workers: list[list[str]] = []

    @contextmanager
    def started(repository: Path, directory: Path, options: list[str], timeout_seconds: float) -> Iterator[Any]:
        assert directory.is_dir()
        workers.append([word for word in options if word.startswith(("resnet50", "encoder"))])
        clock.now += 10.0
        yield SimpleNamespace(last_lines=lambda count: "")

    def measure(self: Any, cell: Any) -> dict[str, Any]:
        clock.now += self.pace.seconds + self.pace.warm + 0.3
        return {"failed": 0, "generator_cpu": [0.1]}

    monkeypatch.setattr(serve, "time", clock)
    monkeypatch.setattr(serve, "serve", started)
    monkeypatch.setattr(serve, "stay", lambda cores: None)
    monkeypatch.setattr(serve, "fault", lambda figure: "")
    monkeypatch.setattr(serve.Bench, "measure", measure)
    monkeypatch.setattr(serve.Bench, "raw_figures", lambda self, model: [])
    cells = plan([RESNET, ENCODER], 8, ["bytes"])
    given = argparse.Namespace(plan=cells, rounds=3, seconds=2.0, warm=0.5, processes=1, sizes=TINY, load_timeout=1.0)
    results = ResultsFile("serve", tmp_path)
    generators: Any = None
    raw: Any = SimpleNamespace(reference=lambda model, version: None)
    assert serve.measure_models(given, tmp_path, tmp_path, [0], generators, raw, results, 90.0)
    assert workers == [[cell.served_model for cell in own[:4]] for own in by_model(cells).values()]
    assert {figure["cell"] for figure in results.figures} == {cell.name for cell in cells}
    assert clock.now <= 90.0


def test_serve_names_the_promises_without_a_figure() -> None:
    cells = plan([RESNET, TWO_TOWER], 8, ["bytes"])
    promised = [f"{RESNET}/overlap/bytes/1", f"{RESNET}/overlap/bytes/8", f"{TWO_TOWER}/overlap/bytes/1"]
    assert unmeasured(cells, []) == promised
    figures = [{"kind": "served", "cell": promised[1]}, {"kind": "raw", "model": RESNET}]
    assert unmeasured(cells, figures) == [promised[0], promised[2]]
    assert unmeasured(cells, [{"kind": "served", "cell": name} for name in promised]) == []


def test_two_tower_shortens_its_runs() -> None:
    given = argparse.Namespace(
        parts=["steady", "search", "rollout"], rounds=2, seconds=60.0, steps=8, step_seconds=10.0
    )
    two_tower.fit(given, 100)
    assert (given.rounds, given.seconds, given.step_seconds) == (1, 30.0, 5.0)
    two_tower.fit(given, 10)
    assert (given.seconds, given.step_seconds) == (10.0, 3.0)


def test_the_full_run_has_the_cells_of_the_quick_one() -> None:
    given = argparse.Namespace(device="cuda", quick=False, tiny=False, results=None)
    for program in every.PROGRAMS:
        words = every.command(program, given, Path("models"), None)
        assert "--cells" not in words
        assert "--limit" not in words
        assert every.command(program, given, Path("models"), 120.0)[6:7] == ["110"]
    quick = {program.name: program.quick for program in every.PROGRAMS}
    assert "--cells" not in quick["generation"]


def test_results_name_the_build(tmp_path: Path) -> None:
    ResultsFile("trial", tmp_path)
    build = json.loads((tmp_path / "trial.json").read_text())["build"]
    assert build["compiled"] is IS_COMPILED
    assert len(build["source_sha256"]) == 64
    assert set(build) == {"compiled", "commit", "source_sha256"}


def test_a_run_without_a_figure_says_so(tmp_path: Path) -> None:
    results = ResultsFile("trial", tmp_path)
    results.add(kind="raw", problem="")
    assert results.shortfall("raw models", limited=True, kind="raw") == ""
    assert results.shortfall("anything", limited=True) == ""
    assert results.shortfall("served models", limited=False, kind="served") == "no figure of served models"
    limited = results.shortfall("served models", limited=True, kind="served")
    assert limited == "no figure of served models: --limit is too short"


def test_a_commit_says_whether_files_have_changed(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", "-C", tmp_path, *identity, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "-qm", "one")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "a.py").write_text("2")
    assert commit(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
    shutil.rmtree(tmp_path / ".git")
    assert commit(tmp_path) == ""


def test_the_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    first = source_digest(tmp_path)
    (tmp_path / "a.so").write_text("compiled")
    assert source_digest(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    second = source_digest(tmp_path)
    (tmp_path / "b.py").write_text("2")
    assert len({first, second, source_digest(tmp_path)}) == 3
