"""examples/compress_model: its signals are the same every time, and the whole script prints its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "compress_model"


def test_signals_come_from_their_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from signals import CLASSES, LENGTH, make_signals

    first, again, other = make_signals(200, 3), make_signals(200, 3), make_signals(200, 4)
    assert first.samples.shape == (200, LENGTH)
    assert np.array_equal(first.samples, again.samples)
    assert not np.array_equal(first.samples, other.samples)
    assert set(first.labels) == set(range(CLASSES))


@pytest.mark.long
def test_the_script_prints_its_table() -> None:
    script = [sys.executable, str(EXAMPLE / "compress.py"), "--seeds", "1", "--epochs", "2"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("float", "best INT8 after training", "INT8, quantization-aware", "student, labels alone"):
        assert f"| {name} |" in done.stdout
    assert "quantization-aware over the best INT8 after training:" in done.stdout


@pytest.mark.long
def test_the_comparison_of_distillation_prints_both_setups() -> None:
    script = [sys.executable, str(EXAMPLE / "distillation.py"), "--seeds", "2", "--epochs", "2"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("more-labels", "wrong-labels"):
        assert f"| {name} | correct (mean) | by seed |" in done.stdout
    assert done.stdout.count("distilled over student, labels alone, best number of steps: ") == 2


def test_wrong_labels_are_of_the_stated_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from distillation import SAME, WRONG, wrong_labels
    from signals import CLASSES, make_signals

    given = wrong_labels(5)
    share = float(np.mean(given.student[1].numpy() != make_signals(SAME, 5).labels))
    # One in CLASSES of the drawn labels is the true one.
    assert abs(share - WRONG * (1 - 1 / CLASSES)) < 0.03
    assert given.teacher[1] is given.student[1]
