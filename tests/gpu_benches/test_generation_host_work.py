"""The benches of the host's work for each token run with the engine and the runner as they are, on any machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.gpu.generation.host_work import PARTS
from bench.worker.peers.process import REPOSITORY_ROOT


def table(program: str, *options: str) -> dict[str, float]:
    """What a program prints for one row, by its first column."""
    words = [sys.executable, "-m", f"bench.gpu.generation.{program}", "--rows", "1", "--rounds", "1", *options]
    done = subprocess.run(words, cwd=REPOSITORY_ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    cells = [[each.strip() for each in line.strip("| ").split("|")] for line in done.stdout.splitlines() if "|" in line]
    return {name: float(value) for name, value in cells[2:]}


def test_host_work_measures_every_part_of_a_step() -> None:
    found = table("host_work", "--tiny", "--tokens", "70")
    assert list(found) == [*PARTS, "all", "of it in the device's way"]
    # Each is printed with one digit.
    assert found["all"] == pytest.approx(sum(found[part] for part in PARTS), abs=0.05 * (len(PARTS) + 1))
    assert 0 < found["of it in the device's way"] < found["all"]


def test_loop_work_measures_a_token() -> None:
    assert table("loop_work", "--steps", "5")["µs per token"] > 0
