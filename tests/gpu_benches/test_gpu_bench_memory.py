"""What the memory bench of GPUs accepts, and what it does not."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from bench.gpu.figures import ResultsFile
from bench.gpu.memory import __main__ as memory
from bench.gpu.memory.__main__ import CYCLES, FAULT, GROWTH, report
from bench.gpu.memory.judgements import MIB, fault_problem, growth, ledger_bytes, refusal_problem, settled
from bench.gpu.models.specs import ENCODER, NO_GRAPHS, OVERLAP, RESNET, TINY, ModelSpec, base_and_variant, variant_name
from isochrone.errors import Unavailable
from isochrone.observe.metrics.devices import device_metrics
from isochrone.observe.snapshot import DeviceMemory
from isochrone.worker.backends.devices.memory_ledger import Account, Holding, MemoryLedger


def refused() -> str:
    """The ledger's own words."""
    ledger = MemoryLedger("cuda:0")
    needs = {Holding.WEIGHTS: 2048 * MIB, Holding.SLOTS: 512}
    with pytest.raises(Unavailable) as raised:
        ledger.reserve(Account("heavy", "1", 0), needs, lambda: (1024 * MIB, 141_000 * MIB), spare=256 * MIB)
    return str(raised.value)


def test_growth_counts_from_the_second_cycle_and_is_bounded() -> None:
    assert growth([0, 500 * MIB, 500 * MIB, 508 * MIB], 8 * MIB) == {
        "cycles": 4,
        "growth_bytes": 8 * MIB,
        "problem": "",
    }
    found = growth([0, 500 * MIB, 600 * MIB], 8 * MIB)
    assert found["problem"] == "+100.0 MiB after 3 cycles: expected 8 MiB at most"
    assert growth([9 * MIB, 5 * MIB, 2 * MIB], 0)["problem"] == ""
    assert growth([1, 2], 8)["problem"] == "2 cycles: expected 3 at least to see a growth"


def test_only_a_refusal_with_its_figures_counts() -> None:
    assert refusal_problem(refused()) == ""
    assert refusal_problem("") == "the model was loaded: expected a refusal"
    for error in ("CUDA out of memory. Tried to allocate 2.00 GiB", "heavy does not fit on cuda:0: no memory"):
        assert error in refusal_problem(error)


def test_a_faulty_model_must_fail_and_serve_again() -> None:
    assert fault_problem("", ["assert", "assert"], "") == ""
    assert "before any illegal access: broken" in fault_problem("broken", ["assert"], "")
    assert "as if it were legal" in fault_problem("", ["assert", ""], "")
    assert fault_problem("", ["assert"], "starting") == "the faulty model does not serve again: starting"


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([9, 9, 9, 9, 9, 9, 9, 9], (9, 0.0)),
        ([9, 9, 9, 5, 6, 5, 5, 5, 5, 5, 5], (5, 0.06)),
        ([9, 9, 9, 9, 9, 9, 9, 2], (9, 0.0)),  # after it stood still
    ],
)
def test_delayed_frees_are_waited_for(readings: list[int], expected: tuple[int, float]) -> None:
    now = 0.0
    left = iter(readings)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    assert settled(lambda: next(left), 1.0, lambda: now, sleep) == pytest.approx(expected)


def test_an_endless_fall_is_not_waited_for() -> None:
    now, reading = 0.0, 1000

    def sleep(seconds: float) -> None:
        nonlocal now, reading
        now += seconds
        reading -= 1

    found, waited = settled(lambda: reading, 0.5, lambda: now, sleep)
    assert (found, waited) == (975, pytest.approx(0.5))


class Worker:
    """A worker whose first load takes 14 seconds, and whose later ones take one."""

    def __init__(self) -> None:
        self.now = 36.0
        self.calls: list[str] = []

    def load(self, model: str) -> str:
        self.now += 1.0 if self.calls else 14.0
        self.calls.append("load")
        return ""

    def run(self, spec: ModelSpec) -> str:
        self.calls.append("run")
        return ""

    def ledger(self) -> dict[str, int]:
        return {"weights": 3 * MIB} if self.calls[-1] == "load" else {}

    def unload(self, model: str) -> None:
        self.calls.append("unload")


def cycles(
    monkeypatch: pytest.MonkeyPatch, directory: Path, worker: Any, ends: float, models: tuple[str, ...] = (ENCODER,)
) -> ResultsFile:
    monkeypatch.setattr(memory, "settled", lambda used, seconds: (used(), 0.0))
    given = argparse.Namespace(models=models, cycles=100, sizes=TINY, growth_mib=8.0, device="cuda")
    results = ResultsFile("memory", directory)
    memory.measure_cycles(worker, lambda: 5 * MIB, given, results, ends, 30.0, lambda: worker.now)
    return results


def test_the_first_load_is_no_cycle_and_the_cycles_have_most_of_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of 90 seconds, 36 were over before the first load, and 50 after it."""
    worker = Worker()
    figures = cycles(monkeypatch, tmp_path, worker, 90.0).figures
    measured = [each for each in figures if each["part"] == CYCLES]
    assert [each["load_seconds"] for each in measured] == [1.0] * 25
    assert worker.calls == ["load", "run", "unload"] * 26
    assert figures[-1] == {
        "part": GROWTH,
        "model": ENCODER,
        "wanted": 100,
        "cycles_seconds": 24.0,
        "cycles": 25,
        "growth_bytes": 0,
        "problem": "",
    }
    assert "only 25 of 100 cycles: --limit left 24 s for them" in report(figures)


def test_all_cycles_fit_into_a_long_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures = cycles(monkeypatch, tmp_path, Worker(), 420.0).figures
    assert figures[-1]["cycles"] == 100
    assert "only" not in report(figures)


def test_models_take_turns_in_equal_shares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = (RESNET, variant_name(ENCODER, NO_GRAPHS))
    figures = cycles(monkeypatch, tmp_path, Worker(), 200.0, names).figures
    grown = [each for each in figures if each["part"] == GROWTH]
    assert [each["model"] for each in grown] == list(names)
    assert abs(grown[0]["cycles"] - grown[1]["cycles"]) <= 2
    measured = [each for each in figures if each["part"] == CYCLES]
    assert {each["model"] for each in measured} == set(names)
    assert all(each["ledger_loaded"] == {"weights": 3 * MIB} and each["ledger_after"] == {} for each in measured)
    text = report(figures)
    assert "resnet50: MiB in use" in text
    assert "encoder-no_graphs: MiB in use" in text


def test_names_of_models_and_variants() -> None:
    assert base_and_variant("encoder") == (ENCODER, OVERLAP)
    assert base_and_variant("encoder-no_graphs") == (ENCODER, NO_GRAPHS)
    for wrong in ("vgg", "encoder-fast", ""):
        with pytest.raises(ValueError, match="expected one of resnet50"):
            base_and_variant(wrong)


def test_what_the_worker_says_that_it_holds() -> None:
    held = [DeviceMemory("cuda:0", "m", "1", number, "weights", 3 << 30) for number in range(2)]
    held.append(DeviceMemory("cuda:0", "n", "1", 0, "slots", 512))

    class Page:
        def collect(self) -> Iterator[Metric]:
            return device_metrics(held, [], [])

    registry = CollectorRegistry()
    registry.register(Page())
    assert ledger_bytes(generate_latest(registry).decode()) == {"weights": 6 << 30, "slots": 512}
    assert ledger_bytes("") == {}


def test_a_first_load_that_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    worker = Worker()
    monkeypatch.setattr(worker, "load", lambda model: "no such file")
    (figure,) = cycles(monkeypatch, tmp_path, worker, 90.0).figures
    assert figure["problem"] == "the load before the cycles: no such file"


def test_the_report_names_growth_waits_and_problems() -> None:
    cycle = {"part": CYCLES, "model": ENCODER, "before": 0, "loaded": 2 * MIB, "after": MIB, "problem": ""}
    cycle |= {"ledger_loaded": {"weights": 5 * MIB, "slots": MIB}, "ledger_after": {}}
    fault = {"part": FAULT, "answers": 10, "failed": 0, "answers_to_faults": ["assert"], "recovered": False}
    text = report(
        [
            {**cycle, "wait_seconds": 0.0},
            {**cycle, "wait_seconds": 0.5},
            {
                "part": GROWTH,
                "model": ENCODER,
                "cycles": 2,
                "wanted": 100,
                "cycles_seconds": 9.6,
                "growth_bytes": 0,
                "problem": "too much",
            },
            {**fault, "recovery_seconds": 60.0, "problem": ""},
        ]
    )
    assert "wait for delayed frees: 0.25 s, 0.50 s at most" in text
    assert "| cycle 2 | 0.0 | 2.0 | 1.0 | 6.0 | 0.0 |" in text
    assert "encoder: 2 cycles: +0.0 MiB" in text
    assert "only 2 of 100 cycles: --limit left 10 s for them" in text
    assert "PROBLEM growth: too much" in text
    assert "serves again: False, after 60.0 s" in text
