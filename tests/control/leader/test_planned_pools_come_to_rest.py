"""Planned pools come to rest: whatever the fleet, moves end, and no replica comes and goes again and again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_plant import MIB, Plant

from isochrone.control.placement.plan import ADD, REMOVE, ROOM, Move, Plan
from isochrone.control.state.records import Assignment


@dataclass(frozen=True)
class Model:
    mib: int
    least: int = 1
    alone: bool = False
    apart: bool = False


#: Their plans added and removed the same replica.
DETOURS = (
    (Model(20), Model(50, 2), Model(40, 3)),
    (Model(30), Model(20, 2), Model(40, 2), Model(20)),
)

_models = st.builds(
    Model,
    st.sampled_from((10, 20, 30, 40, 50)),
    st.sampled_from((1, 1, 1, 2, 3)),
    st.sampled_from((*[False] * 9, True)),
    st.sampled_from((False, False, True)),
)


def plant_of(models: tuple[Model, ...], workers: int, is_ensemble: bool = False) -> Plant:
    """``is_ensemble``: the first model runs the second."""
    lines = [
        f"  m{at}: {{memory: {each.mib}MiB, min_replicas: {each.least}, "
        f"alone: {str(each.alone).lower()}, apart: {str(each.apart).lower()}}}"
        for at, each in enumerate(models)
    ]
    pool = f"{{workers: {workers}, memory: 100MiB, replicas: planned}}"
    text = f"name: plant\nstore: {{lease_seconds: 4}}\npools: {{cpu: {pool}}}\nmodels:\n" + "\n".join(lines)
    committed = {
        f"m{at}": Assignment(
            "1", pools=("cpu",), memory=each.mib * MIB, stages=("m1",) if is_ensemble and at == 0 else ()
        )
        for at, each in enumerate(models)
    }
    plant = Plant(text, committed)
    plant.join(*(f"cpu-{number}" for number in range(1, workers + 1)))
    return plant


@pytest.mark.parametrize("models", DETOURS)
def test_a_plan_without_detours_comes_to_rest(models: tuple[Model, ...]) -> None:
    plant = plant_of(models, 2)
    plant.settle()
    before = plant.events
    for _ in range(10):
        assert not plant.step(1.0)
        plant.load()
    assert plant.events == before
    assert all(times == 1 for times in Counter(before).values())


@settings(max_examples=max(200, settings.default.max_examples))
@given(st.lists(_models, min_size=3, max_size=6), st.integers(2, 4), st.data())
def test_a_random_fleet_comes_to_rest(models: list[Model], workers: int, data: st.DataObject) -> None:
    """Also with ensembles and with workers that cannot load some models."""
    plant = plant_of(tuple(models), workers, data.draw(st.booleans()))
    pairs = st.tuples(st.integers(1, workers), st.integers(0, len(models) - 1))
    failing = {(f"cpu-{worker}", f"m{model}") for worker, model in data.draw(st.sets(pairs, max_size=3))}
    quiet, events = 0, 0
    # Workers try one after the other what another one could not load, and again after 30 s, then after 60 s.
    for _ in range(30):
        plant.step(2.0)
        plant.load(failing)
        before, events = events, len(plant.events)
        quiet = quiet + 1 if events == before else 0
        if quiet == 3:
            return
    raise AssertionError(plant.events)


def planned(monkeypatch: pytest.MonkeyPatch, *moves: tuple[str, str]) -> tuple[Plant, str]:
    """A fleet at rest with one replica of its model, and the worker that has it; then a plan of these moves, whose
    workers are "it" and "other"."""
    plant = plant_of((Model(40),), 2)
    plant.settle()
    plant.step(1.0)
    ((name,),) = plant.replicas.values()
    (other,) = plant.workers.keys() - {name}
    named = {"it": name, "other": other}
    plan = Plan({}, tuple(Move(action, "m0", named[worker], ROOM) for action, worker in moves))
    monkeypatch.setattr(plant.placement, "_plan", plan)
    return plant, name


def test_a_move_that_was_undone_does_not_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may need a detour: its execution passes through it once."""
    # The last move never begins: the only replica stays.
    plant, name = planned(monkeypatch, (ADD, "other"), (REMOVE, "other"), (REMOVE, "it"))
    for _ in range(30):
        assert plant.step(1.0)
        plant.load()
    assert plant.replicas == {"m0": (name,)}
    assert [what for what, _, _ in plant.events] == ["replica loads", "replica loads", "replica unloads"]


def test_a_plan_that_does_not_get_on_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plant, name = planned(monkeypatch, (ADD, "other"), (REMOVE, "other"), (REMOVE, "it"))
    for _ in range(25):
        assert plant.step(2.0), "its only replica stays"
        plant.load()
    for _ in range(10):
        plant.step(2.0)
        plant.load()
    assert not plant.step(2.0), "a plan for what stands is empty"
    assert plant.replicas == {"m0": (name,)}
