"""Loads in planned pools that never end: the model is placed elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from planned_plant import TEXT, Plant, committed

from isochrone.control.placement.applying.late_loads import LateLoads
from isochrone.control.rollout.observed_state import LOADING, Loaded, ObservedWorker

LIMIT = 20.0
LIMITED = TEXT.replace("a: {memory: 40MiB}", "a: {memory: 40MiB, rollout: {prepare_seconds: 20}}")


def hanging() -> tuple[Plant, str]:
    """A fleet where the only replica of a model never gets ready, and the worker that should load it."""
    plant = Plant(LIMITED, committed("a"))
    plant.join("cpu-1", "cpu-2")
    plant.step(1.0)
    (name,) = plant.replicas["a"]
    return plant, name


def load(plant: Plant, hanging: Collection[str]) -> None:
    plant.load()
    for name in hanging:
        worker = plant.workers[name]
        models = {model: {"1": Loaded(LOADING)} for model in worker.models or {}}
        plant.workers[name] = replace(worker, models=models)


def test_a_load_that_hangs_counts_as_failed() -> None:
    plant, name = hanging()
    while plant.now < LIMIT:
        load(plant, [name])
        plant.step(1.0)
        assert plant.replicas["a"] == (name,)
    for _ in range(10):
        load(plant, [name])
        plant.step(1.0)
    (other,) = plant.replicas["a"]
    assert other != name
    hangs = [(about, detail) for what, about, detail in plant.events if what == "load hangs"]
    assert hangs == [("a", f"worker {name}: it is not ready after 20 s (prepare_seconds)")]
    for _ in range(60):
        load(plant, [])
        plant.step(1.0)
    assert plant.replicas["a"] == (other,)


def test_a_load_that_hangs_everywhere_is_reported_once_for_each_worker() -> None:
    plant, _ = hanging()
    for _ in range(3 * int(LIMIT)):
        load(plant, ["cpu-1", "cpu-2"])
        plant.step(1.0)
    hangs = [detail.split(":")[0] for what, _, detail in plant.events if what == "load hangs"]
    assert sorted(hangs) == ["worker cpu-1", "worker cpu-2"]


def test_time_counts_only_while_the_worker_answers() -> None:
    plant, name = hanging()
    for _ in range(3):
        for _ in range(int(LIMIT) - 2):
            load(plant, [name])
            plant.step(1.0)
        plant.workers[name] = ObservedWorker(plant.workers[name].record)
        plant.step(1.0)
    assert plant.replicas["a"] == (name,)


@given(st.lists(st.integers(1, int(LIMIT) - 1), min_size=1, max_size=8))
def test_models_that_a_worker_loads_one_after_the_other_are_not_late(times: list[int]) -> None:
    loads, now, names = LateLoads(), 0.0, [f"m{at}" for at in range(len(times))]
    process, limits = ("w", "1"), dict.fromkeys(names, LIMIT)
    for at, seconds in enumerate(times):
        assert not loads.late({process: names[at:]}, {process: frozenset(names[:at])}, limits, now)
        now += seconds
        assert not loads.late({process: names[at:]}, {process: frozenset(names[:at])}, limits, now)
    late = loads.late({process: ["m0"]}, {process: frozenset()}, {"m0": LIMIT}, now)
    assert not late, "it was ready"
    assert loads.late({process: ["m0"]}, {process: frozenset()}, {"m0": LIMIT}, now + LIMIT) == {"w": {"m0"}}
