"""Trials in child processes: the reference is the float model's, and slow models are compared on fewer runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isochrone.optimize.measuring.timing import measure_in_turns
from isochrone.optimize.trials import child_tasks
from isochrone.worker.backends.interface import Executable


class Doubling(Executable):
    def __init__(self) -> None:
        self.clock = 0

    def execute(self, inputs: Any, outputs: tuple[str, ...] | None) -> Any:
        self.clock += 500_000_000
        return {"y": inputs["x"] * 2}

    def close(self) -> None:
        pass


@pytest.fixture
def given_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of a run whose runs take half a second each, by the clock of the trial."""
    np.savez(tmp_path / "held_out.npz", **{"0": np.ones((40, 1, 3), np.float32)})
    model = Doubling()
    monkeypatch.setattr(child_tasks, "_load", lambda directory: model)
    monkeypatch.setattr(child_tasks, "now_ns", lambda: model.clock)
    return {
        "model": "m",
        "data": str(tmp_path / "held_out.npz"),
        "inputs": ["x"],
        "reference": str(tmp_path / "reference.npz"),
        "task": "regress",
        "has_labels": False,
        "seconds": 0.01,
        "most_seconds": 10.0,
    }


def test_a_slow_float_model_is_compared_on_fewer_runs(given_run: dict[str, Any]) -> None:
    assert child_tasks.run(**given_run, float_model="")["runs"] == 10
    found = child_tasks.run(**given_run, float_model="f")
    assert (found["runs"], found["relative_error"]) == (10, 0.0)


def test_a_candidate_that_is_too_slow_is_not_compared(given_run: dict[str, Any]) -> None:
    child_tasks.run(**given_run, float_model="")
    with pytest.raises(ValueError, match="too slow to compare: one run takes 500 ms, and there are 10 of them"):
        child_tasks.run(**{**given_run, "most_seconds": 4.0}, float_model="f")


def test_only_the_float_model_writes_the_reference(given_run: dict[str, Any]) -> None:
    with pytest.raises(OSError, match="reference"):
        child_tasks.run(**given_run, float_model="f")
    assert not Path(given_run["reference"]).exists()


def test_a_candidate_is_timed_in_turns_with_the_float_model(
    given_run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    child_tasks.run(**given_run, float_model="")
    model = child_tasks._load(Path("m"))
    loaded: list[str] = []

    def load(directory: Path) -> Any:
        loaded.append(str(directory))
        return model

    monkeypatch.setattr(child_tasks, "_load", load)
    monkeypatch.setattr(child_tasks, "measure_in_turns", partial(measure_in_turns, clock=lambda: model.clock))
    found = child_tasks.run(**{**given_run, "seconds": 3.0}, float_model="f")
    assert loaded == ["m", "f"]
    assert (found["speed_up"], found["milliseconds"]) == (1.0, 500.0)
    # Turns of twelve runs do not fit into a second.
    slow = child_tasks.run(**{**given_run, "seconds": 0.5}, float_model="f")
    assert slow["speed_up"] is None
    assert slow["milliseconds"] > 0
