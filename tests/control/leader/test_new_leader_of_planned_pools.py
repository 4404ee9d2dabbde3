"""A leader that does not know yet what workers have: it loses no replica, and forgets no memory that is in use."""

from __future__ import annotations

from planned_plant import MIB, Plant, committed, started

from fleet_records import KEYS
from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.observed_state import READY, Loaded, ObservedState, ObservedWorker
from isochrone.control.state.records import EpochRecord, PlacementRecord
from isochrone.control.state.rollout_records import PENDING, PREPARING, Change, RolloutRecord


def begun(plant: Plant, rollout: RolloutRecord) -> RolloutRecord:
    view = plant.records.view
    state = ObservedState(
        now=1.0,
        epoch=view.epoch or EpochRecord(0),
        workers=plant.workers,
        rollouts=tuple(view.open_rollouts),
        placements=view.placements,
    )
    return advance(rollout, state).record


def test_no_replica_leaves_before_workers_have_reported() -> None:
    plant = Plant(versions=committed("a", "b", "c"))
    plant.join("cpu-1", "cpu-2", "cpu-3")
    # All are on one worker, which is too small for them; a is ready on it and loads on another one.
    replicas = {"a": ("cpu-1", "cpu-2"), "b": ("cpu-1",), "c": ("cpu-1",)}
    plant.records.put(KEYS.placement("cpu"), PlacementRecord(replicas))
    real = {
        "cpu-1": {model: {"1": Loaded(READY)} for model in ("a", "b", "c")},
        "cpu-2": {"a": {"1": Loaded("LOADING")}},
        "cpu-3": {},
    }
    plant.lead_anew()
    for _ in range(5):
        plant.step(1.0)
        assert plant.replicas == replicas
    for name in ("cpu-2", "cpu-3", "cpu-1"):
        plant.workers[name] = ObservedWorker(plant.workers[name].record, real[name])
        for _ in range(5):
            plant.step(1.0)
            assert "cpu-1" in plant.replicas["a"], "its only ready replica"
    plant.settle()
    assert sum("cpu-1" in names for names in plant.replicas.values()) == 2


def test_memory_that_is_not_free_yet_stays_reserved() -> None:
    plant = started()
    (name,) = plant.replicas["a"]
    # z is retired, and its unload is in progress.
    held = {"a": {"1": Loaded(READY)}, "z": {"1": Loaded("UNLOADING")}}
    plant.workers[name] = ObservedWorker(plant.workers[name].record, held)
    record = plant.records.view.placements["cpu"]
    plant.records.put(
        KEYS.placement("cpu"), PlacementRecord(record.replicas, {name: 50 * MIB}, {**record.memory, "z": 50 * MIB})
    )
    plant.step(1.0)
    before = plant.records.view.placements["cpu"]
    assert (before.reserved, before.memory["z"]) == ({name: 50 * MIB}, 50 * MIB)
    rollout = plant.records.rollout("r1", PENDING, {"a": Change("2", "1", pools=("cpu",), memory=40 * MIB)})
    assert begun(plant, rollout).state == PENDING, "2 times 40 MiB and 50 MiB do not fit"
    plant.lead_anew()
    plant.step(0.1)
    after = plant.records.view.placements["cpu"]
    assert (after.reserved, after.memory) == (before.reserved, before.memory)
    assert begun(plant, rollout).state == PENDING
    plant.workers[name] = ObservedWorker(plant.workers[name].record, {"a": {"1": Loaded(READY)}})
    plant.step(0.1)
    assert begun(plant, rollout).state == PREPARING, "it has left"
    for other in set(plant.workers) - {name}:
        plant.workers[other] = ObservedWorker(plant.workers[other].record, {})
    plant.step(0.1)
    assert "z" not in plant.records.view.placements["cpu"].memory
