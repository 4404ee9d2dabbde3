"""Plans that would take planned pools something away: memory, and the only replicas of models."""

from __future__ import annotations

from fleets import parse

from isochrone.control.fleet.planning.plan import plan
from isochrone.control.fleet.planning.steps import INTERRUPT, REFUSE
from isochrone.control.state.records import Assignment, PlacementRecord

MIB = 2**20
TEXT = """
name: plant
pools:
  cpu: {workers: 3, memory: 100MiB, replicas: planned}
models: {a: {memory: 40MiB}, b: {memory: 40MiB}, c: {memory: 40MiB}}
"""
COMMITTED = {model: Assignment("1", pools=("cpu",), memory=40 * MIB) for model in "abc"}


def test_a_pool_whose_models_do_not_fit_on_one_worker_stays_planned() -> None:
    before, after = parse(TEXT), parse(TEXT.replace("planned", "all"))
    (step,) = plan(before, after, committed=COMMITTED)
    assert (step.action, step.name) == (REFUSE, "pools.cpu.replicas")
    assert step.detail.startswith("its 3 models take 120 MiB, and each of its workers has 100 MiB; keep it planned")
    roomy = [parse(text.replace("100MiB", "120MiB")) for text in (TEXT, TEXT.replace("planned", "all"))]
    assert not any(step.action == REFUSE for step in plan(*roomy, committed=COMMITTED))


def test_scaling_that_stops_the_only_replicas_of_models_interrupts_them() -> None:
    before, after = parse(TEXT), parse(TEXT.replace("workers: 3", "workers: 2"))
    placements = {"cpu": PlacementRecord({"a": ("cpu-3",), "b": ("cpu-2", "cpu-3"), "c": ("cpu-1",)})}
    (step,) = [
        step for step in plan(before, after, committed=COMMITTED, placements=placements) if step.action == INTERRUPT
    ]
    assert (step.name, step.processes) == ("cpu", ("cpu-3",))
    assert step.detail == "cpu-3 stops with the only replicas of a; to avoid that, apply min_replicas: 2 first"
    safe = {"cpu": PlacementRecord({"a": ("cpu-1",), "b": ("cpu-2", "cpu-3"), "c": ("cpu-1",)})}
    steps = plan(before, after, committed=COMMITTED, placements=safe)
    assert not any(step.action == INTERRUPT for step in steps)


def test_a_planned_pool_that_a_file_dropped_comes_back_planned() -> None:
    """The pool still serves, by its placement record: without it, each worker would load all models."""
    dropped = parse(TEXT.replace("cpu: {workers: 3, memory: 100MiB, replicas: planned}", "gpu: {workers: 1}"))
    back = parse(TEXT.replace(", replicas: planned", ""))
    placements = {"cpu": PlacementRecord({"a": ("cpu-1",), "b": ("cpu-2",), "c": ("cpu-3",)})}
    (step,) = plan(dropped, back, committed=COMMITTED, placements=placements)
    assert (step.action, step.name) == (REFUSE, "pools.cpu.replicas")
    planned = plan(dropped, parse(TEXT), committed=COMMITTED, placements=placements)
    assert not any(step.action == REFUSE for step in planned)
    forgotten = plan(dropped, back, committed=COMMITTED)
    assert not any(step.action == REFUSE for step in forgotten), "its workers have all models"


def test_a_second_pool_keeps_a_model_only_with_a_replica_there() -> None:
    text = TEXT.replace("models:", "  gpu: {workers: 2, first_port: 19000, memory: 100MiB, replicas: planned}\nmodels:")
    before, after = parse(text), parse(text.replace("workers: 3", "workers: 2"))
    committed = {model: Assignment("1", pools=("cpu", "gpu"), memory=40 * MIB) for model in "ab"}
    placements = {"cpu": PlacementRecord({"a": ("cpu-3",), "b": ("cpu-3",)}), "gpu": PlacementRecord({"b": ("gpu-1",)})}
    steps = plan(before, after, committed=committed, placements=placements)
    (step,) = [step for step in steps if step.action == INTERRUPT]
    assert "the only replicas of a;" in step.detail
    # In a pool that is not planned, every worker has it.
    del placements["gpu"]
    steps = plan(before, after, committed=committed, placements=placements)
    assert not any(step.action == INTERRUPT for step in steps)
