"""The verdicts of the partitioning bench, with made times; and its models."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import onnxruntime
import pytest

from bench.partitioning.cells import Cell, cells_of
from bench.partitioning.comparing import compare, contenders
from bench.partitioning.example import example_model, next_count
from bench.partitioning.live import BACK, CHANGES, LiveRun, present_division
from bench.partitioning.models import MODELS, read, rows_of


def noisy(seconds: float, seed: int) -> Callable[[], float]:
    source = random.Random(seed)
    return lambda: seconds * source.uniform(1.0, 1.02)


def compared(times: dict[str, float], chosen: str, predicted: dict[str, float] | None = None) -> tuple[str, float]:
    ticks = itertools.count()
    options = {name: noisy(seconds, number) for number, (name, seconds) in enumerate(times.items())}
    found = compare(options, predicted or times, chosen, 20.0, lambda: float(next(ticks)))
    return found.best, found.ratio


def test_a_choice_that_is_the_best_has_the_ratio_one() -> None:
    assert compared({"edge": 0.05, "core": 0.03, "cut": 0.02}, "cut") == ("cut", 1.0)


def test_a_choice_that_is_not_the_best_is_compared_with_it() -> None:
    best, ratio = compared({"edge": 0.05, "core": 0.03, "cut": 0.02}, "core")
    assert best == "cut"
    assert ratio == pytest.approx(1.5, rel=0.05)


def test_a_choice_that_is_hopeless_is_still_measured() -> None:
    best, ratio = compared({"edge": 1.0, "cut": 0.02}, "edge")
    assert best == "cut"
    assert ratio == pytest.approx(50, rel=0.05)


def test_options_that_are_left_out() -> None:
    asked: list[str] = []

    def option(name: str, seconds: float) -> Callable[[], float]:
        def measure() -> float:
            asked.append(name)
            return seconds

        return measure

    times = {"best": 0.01, "slow": 0.05, "never": 0.02}
    predicted = {"best": 0.01, "slow": 0.03, "never": 0.2}
    ticks = itertools.count()
    options = {name: option(name, seconds) for name, seconds in times.items()}
    found = compare(options, predicted, "best", 10.0, lambda: float(next(ticks)))
    assert found.left_out == {"slow": 0.05, "never": None}
    assert (asked.count("slow"), asked.count("never")) == (1, 0)


def test_contenders_are_those_that_may_be_the_best() -> None:
    samples = {"a": [1.0, 1.1, 1.2], "b": [1.4, 2.0, 2.0], "c": [1.6, 1.7, 1.8]}
    assert contenders(samples, ["a", "b", "c"], "a") == ["a", "b"]
    assert contenders(samples, ["a", "b", "c"], "c") == ["a", "b", "c"]


def test_cells_are_read() -> None:
    assert cells_of("1x1000, 50x0.5") == [Cell(1, 1000), Cell(50, 0.5)]
    assert Cell(10, 8).settings.delay == 0.005
    with pytest.raises(ValueError, match="float"):
        cells_of("fast")


@pytest.mark.parametrize(("count", "wanted"), [(10, 8.0), (40, 8.0), (3, 6.0)])
def test_layers_for_a_time(count: int, wanted: float) -> None:
    """Each takes 0.5 ms, and 1 ms is fixed."""
    assert next_count(count, 1.0 + 0.5 * count, wanted, 1.0) == (wanted - 1.0) / 0.5


def test_moves_of_a_live_run() -> None:
    run = LiveRun(divisions=[(0.0, "cut-7"), (CHANGES + 2.0, "edge"), (BACK + 6.5, "cut-7")])
    run.answered = [(at / 10, 0.02 if at < CHANGES * 10 else 0.03) for at in range(200)]
    assert run.moved_after(CHANGES) == pytest.approx(2.0)
    assert run.moved_after(BACK) == pytest.approx(6.5)
    assert any("0 failed" in line for line in run.lines())
    assert LiveRun(divisions=[(0.0, "edge")]).moved_after(CHANGES) is None


def test_the_present_division_is_read_from_metrics() -> None:
    page = 'isochrone_division_present{division="edge",model="m",version="1"} 0.0\n'
    page += 'isochrone_division_present{division="cut-7",model="m",version="1"} 1.0\n'
    assert present_division(page) == "cut-7"
    assert present_division("") == ""


@pytest.mark.parametrize("name", [*MODELS, "example"])
def test_the_models_run(name: str) -> None:
    data = example_model(2, 2) if name == "example" else MODELS[name]()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, rows_of(read(data), 2))
    assert found.shape == (2, 10)
