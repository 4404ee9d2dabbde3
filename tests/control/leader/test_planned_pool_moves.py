"""Models that leave a planned pool, or come to one, in a rollout: nothing is unloaded before the rollout is over."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from planned_plant import MIB, Plant, committed

from fleet_records import KEYS
from isochrone.control.state.records import Assignment, EpochRecord
from isochrone.control.state.rollout_records import CANARY, COMPARING, DONE, DRAINING, PREPARING, SWITCHING, Change

TEXT = """
name: plant
store: {lease_seconds: 4}
pools:
  cpu: {workers: 3, memory: 100MiB, replicas: planned}
  gpu: {workers: 1, memory: 100MiB, replicas: REPLICAS}
models: {a: {memory: 40MiB}, b: {memory: 40MiB}, c: {memory: 40MiB}}
"""
BEFORE_COMMIT = (PREPARING, COMPARING, CANARY, SWITCHING)


@dataclass(frozen=True)
class Course:
    """A model's pools before and after a rollout."""

    replicas: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def left(self) -> tuple[str, ...]:
        return tuple(pool for pool in self.before if pool not in self.after)


COURSES = [
    Course(replicas, before, ("gpu",)) for replicas in ("all", "planned") for before in (("cpu",), ("cpu", "gpu"))
]


@pytest.mark.parametrize("course", COURSES, ids=str)
def test_a_model_that_leaves_a_planned_pool_stays_until_its_rollout_is_over(course: Course) -> None:
    plant = Plant(TEXT.replace("REPLICAS", course.replicas), committed())
    plant.join("cpu-1", "cpu-2", "cpu-3")
    plant.settle()
    (name,) = plant.replicas["a"]
    assert name.startswith("cpu")
    models = {**committed(), "a": Assignment("1", pools=course.before, memory=40 * MIB)}
    plant.records.put(KEYS.epoch, EpochRecord(8, models))
    change = {"a": Change("1", before="1", pools=course.after, left=course.left, memory=40 * MIB)}
    for state in BEFORE_COMMIT:
        plant.records.rollout("r1", state, change)
        for _ in range(3):
            plant.step(5.0)
            assert name in plant.replicas.get("a", ()), state
    models["a"] = Assignment("1", pools=course.after, memory=40 * MIB)
    plant.records.put(KEYS.epoch, EpochRecord(9, models))
    plant.records.rollout("r1", DRAINING, change, epoch=9)
    for _ in range(3):
        plant.step(5.0)
        assert name in plant.replicas.get("a", ()), "gateways that have not seen the commit send requests to it"
    plant.records.rollout("r1", DONE, change, epoch=9)
    if course.replicas == "planned":
        plant.join("gpu-1", pool="gpu")
    for _ in range(6):
        plant.step(5.0)
        plant.load()
    assert "a" not in plant.replicas, "then it leaves"
