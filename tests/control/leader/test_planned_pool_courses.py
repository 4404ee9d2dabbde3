"""Planned pools over any course of rollouts, drains and lost leases: what workers really hold always fits, and no ready
replica is unloaded before another one is ready."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_plant import EVENT, MIB, Plant

from fleet_records import KEYS
from isochrone.control.rollout.desired_versions import desired_versions, lack_of_memory, waits_for_memory
from isochrone.control.rollout.observed_state import LOADING, READY, Loaded, ObservedWorker
from isochrone.control.state.records import (
    ABORTED,
    ABORTING,
    DONE,
    DRAINING,
    PENDING,
    PREPARING,
    SWITCHING,
    Assignment,
    Change,
    EpochRecord,
    PlacementRecord,
    RolloutRecord,
)

TEXT = """
name: plant
store: {lease_seconds: 4}
pools:
  cpu: {workers: 3, memory: 100MiB, replicas: planned}
models: {a: {memory: 40MiB}, b: {memory: 40MiB}, c: {memory: 30MiB}}
"""
NAMES, MODELS = ("cpu-1", "cpu-2", "cpu-3"), ("a", "b", "c")
UNLOADING = "UNLOADING"


def assignments(**sizes: int) -> dict[str, Assignment]:
    return {model: Assignment("1", pools=("cpu",), memory=size * MIB) for model, size in sizes.items()}


def states(**versions: tuple[str, ...]) -> dict[str, dict[str, Loaded]]:
    return {model: {version: Loaded(READY) for version in each} for model, each in versions.items()}


def test_a_replica_that_is_added_while_a_rollout_drains_loads_both_versions() -> None:
    models = {"a": Assignment("2", previous="1", pools=("cpu",), memory=40 * MIB), **assignments(b=40)}
    plant = Plant(TEXT.replace(", c: {memory: 30MiB}", "").replace("workers: 3", "workers: 2"), models)
    plant.records.put(KEYS.placement("cpu"), PlacementRecord({"a": ("cpu-1",), "b": ("cpu-2",)}))
    plant.join("cpu-1", "cpu-2")
    record = plant.workers["cpu-1"].record
    plant.workers["cpu-1"] = ObservedWorker(record, states(a=("1", "2")))
    plant.workers["cpu-2"] = ObservedWorker(plant.workers["cpu-2"].record, states(b=("1",)))
    change = {"a": Change("2", "1", pools=("cpu",), memory=40 * MIB)}
    plant.records.rollout("r1", DRAINING, change, epoch=7)
    plant.records.put(KEYS.drain("cpu-1"), EVENT)
    plant.step(1.0)
    assert plant.replicas["a"] == ("cpu-1",), "3 times 40 MiB do not fit into 100"
    plant.records.rollout("r1", DONE, change, epoch=7)
    plant.step(1.0)
    assert plant.replicas["a"] == ("cpu-1", "cpu-2")


class Course:
    """Workers that load and unload late, and a rollout that goes its way."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        #: By model and version: MiB. Versions of one model may differ.
        self.sizes = {(model, "1"): chance.choice((20, 30, 40)) for model in MODELS}
        self.plant = Plant(TEXT, assignments(**{model: self.sizes[model, "1"] for model in MODELS}))
        self.plant.join(*NAMES)
        #: By worker: the states of what is in its memory.
        self.held: dict[str, dict[tuple[str, str], str]] = {name: {} for name in NAMES}
        self.versions = dict.fromkeys(MODELS, 1)
        self.epoch = 7

    def step(self) -> None:
        plant = self.plant
        for name, held in self.held.items():
            models: dict[str, dict[str, Loaded]] = {}
            for (model, version), state in held.items():
                models.setdefault(model, {})[version] = Loaded(state)
            if name not in plant.workers:
                continue
            if plant.workers[name].models is not None or self.chance.random() < 0.5:
                plant.workers[name] = ObservedWorker(plant.workers[name].record, models)
        plant.step(self.chance.choice((0.1, 1.0, 4.0)))

    def work(self, name: str) -> None:
        """One worker goes on with what it is told."""
        view, held = self.plant.records.view, self.held[name]
        if name not in view.workers or self.plant.placement.is_undecided(view, view.workers[name]):
            return
        record = view.workers[name]
        wanted = desired_versions(record, view.epoch or EpochRecord(0), view.open_rollouts, view.placements)
        told = {(model, version) for model, versions in wanted.items() for version in versions}
        for each, state in list(held.items()):
            if each in told:
                held[each] = READY
            elif state == UNLOADING:
                del held[each]
            else:
                if state == READY and view.assignments[each[0]].version == each[1] and self.serves(name):
                    assert self.others(each, name), f"the last ready replica of {each} leaves {name}"
                held[each] = UNLOADING
        for each in told - held.keys():
            held[each] = LOADING
        used = {each: self.sizes[each] for each in held}
        assert sum(used.values()) <= 100, f"{name} holds {used}"

    def serves(self, name: str) -> bool:
        entries = self.plant.records.entries
        return KEYS.worker(name) in entries and KEYS.drain(name) not in entries

    def others(self, version: tuple[str, str], name: str) -> list[str]:
        """Other workers that serve a version."""
        return [each for each in NAMES if each != name and self.serves(each) and self.held[each].get(version) == READY]

    def leave_or_return(self, name: str) -> None:
        """A worker loses its lease and keeps what it has; or it registers again."""
        if name in self.plant.workers:
            self.plant.leave(name)
        else:
            self.plant.join(name)
            self.plant.workers[name] = ObservedWorker(self.plant.workers[name].record)

    def roll(self) -> None:
        """The rollout takes its next step; without one, another begins."""
        records, chance = self.plant.records, self.chance
        view = records.view
        if not view.open_rollouts:
            model = chance.choice(MODELS)
            before, after = view.assignments[model].version, str(self.versions[model] + 1)
            self.versions[model] += 1
            self.sizes[model, after] = chance.choice((20, 30, 40))
            change = Change(after, before, pools=("cpu",), memory=self.sizes[model, after] * MIB)
            records.rollout(f"r{self.epoch}{after}{model}", PENDING, {model: change})
            return
        (rollout,) = view.open_rollouts
        match rollout.state:
            case "pending":
                if self.may_begin(rollout):
                    first = {"cpu": chance.choice((*NAMES, ""))}
                    self.enter(rollout, PREPARING, first_loads=first)
            case "preparing":
                self.enter(rollout, chance.choice((SWITCHING, ABORTING)))
            case "switching":
                self.commit(rollout)
            case "draining":
                self.enter(rollout, DONE)
            case _:
                if not self.is_anywhere(rollout):
                    self.enter(rollout, ABORTED)

    def is_anywhere(self, rollout: RolloutRecord) -> bool:
        new = {(model, change.version) for model, change in rollout.changes.items()}
        return any(new & held.keys() for held in self.held.values())

    def may_begin(self, rollout: RolloutRecord) -> bool:
        view = self.plant.records.view
        epoch, open_ones, placements = view.epoch or EpochRecord(0), view.open_rollouts, view.placements
        # A worker that comes back during a rollout may have versions that it has not unloaded yet (docs/critique.md).
        return view.workers.keys() == set(NAMES) and not any(
            lack_of_memory(record, epoch, open_ones, rollout, placements)
            or waits_for_memory(record, epoch, open_ones, rollout, placements)
            for record in view.workers.values()
        )

    def enter(self, rollout: RolloutRecord, state: str, **fields: object) -> None:
        changed = msgspec.structs.replace(rollout, state=state, **fields)
        self.plant.records.put(KEYS.rollout(rollout.identity), changed)

    def commit(self, rollout: RolloutRecord) -> None:
        self.epoch += 1
        models = dict(self.plant.records.view.assignments)
        for model, change in rollout.changes.items():
            models[model] = Assignment(change.version, pools=change.pools, memory=change.memory)
        self.plant.records.put(KEYS.epoch, EpochRecord(self.epoch, models))
        self.enter(rollout, DRAINING, epoch=self.epoch)

    def drain(self, name: str) -> None:
        records = self.plant.records
        if KEYS.drain(name) in records.entries:
            del records.entries[KEYS.drain(name)]
        else:
            records.put(KEYS.drain(name), EVENT)


@given(st.randoms(use_true_random=True))
@settings(max_examples=25, deadline=None)
def test_over_any_course_memory_suffices_and_no_last_ready_replica_leaves(chance: Random) -> None:
    course = Course(chance)
    for _ in range(40):
        course.step()
        match chance.choice(("work", "work", "work", "roll", "roll", "drain", "lead", "leave")):
            case "work":
                course.work(chance.choice(NAMES))
            case "roll":
                course.roll()
            case "drain":
                course.drain(chance.choice(NAMES))
            case "leave":
                course.leave_or_return(chance.choice(NAMES))
            case _:
                course.plant.lead_anew()
