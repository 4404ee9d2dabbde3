"""Workers of planned pools that do not answer any more: what they said last justifies no unload elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace

from planned_plant import LEASE, TEXT, Plant, committed

from fleet_records import KEYS, file_of
from isochrone.control.leader.model_placement import KNOWN_SECONDS
from isochrone.control.rollout.observed_state import ObservedWorker
from isochrone.control.state.records import EventRecord, FleetRecord


def moving() -> tuple[Plant, str, str]:
    """The only replica of a model leaves a drained worker; the new one is ready and not known yet. The worker that it
    leaves, and the one that has it."""
    plant = Plant(versions=committed("a"))
    plant.join("cpu-1", "cpu-2")
    plant.settle()
    (source,) = plant.replicas["a"]
    plant.records.put(KEYS.drain(source), EventRecord(1.0, "me", "drained"))
    plant.step(1.0)
    (target,) = {*plant.replicas["a"]} - {source}
    plant.load()
    plant.step(0.0)
    assert {*plant.replicas["a"]} == {source, target}
    return plant, source, target


def answered(plant: Plant, name: str, at: float) -> None:
    plant.workers[name] = replace(plant.workers[name], read_at=at)


def test_a_worker_that_does_not_answer_justifies_no_unload() -> None:
    plant, source, target = moving()
    answered(plant, target, -math.inf)
    for _ in range(10):
        plant.step(1.0)
        assert source in plant.replicas["a"], "the other one may be dead"
    answered(plant, target, math.inf)
    plant.step(1.0)
    assert source in plant.replicas["a"], "gateways must see it again, too"
    plant.step(KNOWN_SECONDS)
    assert plant.replicas["a"] == (target,)


def test_an_unload_needs_an_answer_after_gateways_know_the_other_replica() -> None:
    plant, source, target = moving()
    answered(plant, target, plant.now + KNOWN_SECONDS - 0.1)
    plant.step(KNOWN_SECONDS)
    assert source in plant.replicas["a"], "it answered before that"
    answered(plant, target, plant.now + 0.1)
    plant.step(5.0)
    assert source in plant.replicas["a"], "its answer is old"
    answered(plant, target, plant.now)
    plant.step(0.2)
    assert plant.replicas["a"] == (target,)


def test_other_pools_do_not_wait_for_the_workers_of_a_new_one() -> None:
    plant = Plant()
    plant.join("cpu-1", "cpu-2", "cpu-3")
    plant.settle()
    text = TEXT.replace("models:", "  gpu: {workers: 1, memory: 100MiB, replicas: planned}\nmodels:")
    spec = file_of(text).fleet.model_dump(mode="json")
    plant.records.put(KEYS.fleet, FleetRecord(2, text, spec, "/fleet", "bob@desk", 900.0))
    plant.join("gpu-1", pool="gpu")
    plant.workers["gpu-1"] = ObservedWorker(plant.workers["gpu-1"].record)
    (lost,) = plant.replicas["a"]
    plant.leave(lost)
    for _ in range(int(LEASE) + 2):
        assert plant.step(1.0), "the new pool is waited for"
    (other,) = plant.replicas["a"]
    assert other != lost
    assert "gpu" not in plant.records.view.placements
    plant.step(10.0)
    assert "gpu" in plant.records.view.placements
