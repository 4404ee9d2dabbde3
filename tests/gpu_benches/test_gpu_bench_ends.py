"""How the GPU benches with parts end: ``main`` itself, with neither models nor processes."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu.budget import Need
from bench.gpu.generation import __main__ as generation
from bench.gpu.two_tower import __main__ as two_tower

SERVER = SimpleNamespace(last_lines=lambda count: "")


def say_words(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--device", "cpu", "--tiny", *words])


@pytest.fixture
def generates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generation, "write_model", lambda *_: tmp_path)
    monkeypatch.setattr(generation, "stay", lambda cores: None)
    monkeypatch.setattr(generation, "served", lambda *_: nullcontext(SERVER))
    monkeypatch.setattr(generation, "Generators", lambda *_: nullcontext())
    say_words(monkeypatch, "--results", str(tmp_path), "--cells", "throughput,prefix")


def play_parts(monkeypatch: pytest.MonkeyPatch, prefix: Any) -> None:
    def throughput(bench: Any) -> None:
        bench.results.add(part="throughput", cell="throughput/continuous/1", problem="")

    monkeypatch.setitem(generation.PARTS, "throughput", (throughput, Need(1, 1)))
    monkeypatch.setitem(generation.PARTS, "prefix", (prefix, Need(1, 1)))


@pytest.mark.usefixtures("generates")
def test_generation_with_a_figure_of_each_part_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    play_parts(monkeypatch, lambda bench: bench.results.add(part="prefix", cell="prefix/on", problem=""))
    assert generation.main() == 0
    assert "no figure" not in capsys.readouterr().out
    written = json.loads((tmp_path / "gpu-generation-tiny.json").read_text())
    assert [each["part"] for each in written["figures"]] == ["throughput", "prefix"]


@pytest.mark.usefixtures("generates")
@pytest.mark.parametrize(("seconds", "reason"), [(0.0, ""), (1e9, ": --limit is too short")])
def test_generation_names_the_part_without_a_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds: float, reason: str
) -> None:
    play_parts(monkeypatch, lambda bench: bench.has_time(seconds, "prefix/on"))
    assert generation.main() == 1
    assert f"no figure of prefix{reason}\n" in capsys.readouterr().out


FIGURE = {"rate": 50.0, "requests": 10, "failed": 0, "unanswered": 0, "generator_cpu": [0.1], "problem": ""}


@pytest.fixture
def recommends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    raw = SimpleNamespace(reference=lambda model, version: None)
    bench = SimpleNamespace(run=lambda rate, seconds: None)
    monkeypatch.setattr(two_tower, "compute_alike", lambda device: None)
    monkeypatch.setattr(two_tower, "stay", lambda cores: None)
    monkeypatch.setattr(two_tower, "write_repository", lambda *_: tmp_path)
    monkeypatch.setattr(two_tower, "RawProcess", lambda *_: nullcontext(raw))
    monkeypatch.setattr(two_tower, "fleet", lambda *_: nullcontext(([], None)))
    monkeypatch.setattr(two_tower, "Generators", lambda *_: nullcontext())
    monkeypatch.setattr(two_tower, "Bench", lambda *_: bench)
    say_words(monkeypatch, "--results", str(tmp_path), "--cells", "steady,search")


@pytest.mark.usefixtures("recommends")
@pytest.mark.parametrize(
    ("measured", "without_time", "said"),
    [
        (("steady", "search"), (), ""),
        (("steady",), (), "no figure of search\n"),
        (("steady",), ("search",), "no figure of search: --limit is too short\n"),
    ],
)
def test_two_tower_names_the_part_without_a_figure(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    measured: tuple[str, ...],
    without_time: tuple[str, ...],
    said: str,
) -> None:
    def measure(given: Any, bench: Any, api: Any, results: Any, ends: float, left_out: set[str]) -> bool:
        for part in measured:
            results.add(part=part, **FIGURE)
        left_out.update(without_time)
        return True

    monkeypatch.setattr(two_tower, "measure", measure)
    assert two_tower.main() == (1 if said else 0)
    printed = capsys.readouterr().out
    assert said in printed
    assert ("no figure" in printed) == bool(said)
