"""Planned pools over any course of rollouts, drains and lost leases: what workers really hold always fits, and no ready
replica is unloaded before another one is ready."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from planned_plant import EVENT, MIB, Plant

from fleet_records import KEYS
from isochrone.control.leader.observation import observe
from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.memory import loadable_versions
from isochrone.control.rollout.observed_state import LOADING, READY, Loaded, ObservedWorker, Verdict
from isochrone.control.state.records import Assignment, EpochRecord, PlacementRecord
from isochrone.control.state.rollout_records import DONE, DRAINING, PENDING, CanaryRule, Change

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


@dataclass(frozen=True)
class Verdicts:
    judged: dict[str, Verdict]
    compared: dict[str, Verdict] = field(default_factory=dict)


class Course:
    """Workers that load and unload late, and rollouts that go their way."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        #: By model and version: MiB. Versions of one model may differ.
        self.sizes = {(model, "1"): chance.choice((20, 30, 40)) for model in MODELS}
        self.plant = Plant(TEXT, assignments(**{model: self.sizes[model, "1"] for model in MODELS}))
        self.plant.join(*NAMES)
        #: By worker: the states of what is in its memory.
        self.held: dict[str, dict[tuple[str, str], str]] = {name: {} for name in NAMES}
        self.versions = dict.fromkeys(MODELS, 1)
        self.rollouts = 0
        self.is_killing = False

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
        self.advance()

    def work(self, name: str) -> None:
        """One worker goes on with what it is told."""
        view, held = self.plant.records.view, self.held[name]
        if name not in view.workers or self.plant.placement.is_undecided(view, view.workers[name]):
            return
        worker = self.plant.workers[name]
        wanted = loadable_versions(worker, view.epoch or EpochRecord(0), view.open_rollouts, view.placements)
        told = {(model, version) for model, versions in wanted.items() for version in versions}
        for each, state in list(held.items()):
            if each in told:
                held[each] = READY
            elif state == UNLOADING:
                del held[each]
            else:
                is_served = state == READY and view.assignments[each[0]].version == each[1] and self.serves(name)
                if is_served and not self.is_killing:
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

    def leave_or_return(self, name: str, is_killed: bool = False) -> None:
        """A worker loses its lease and keeps what it has, or is killed; or it registers again."""
        if name in self.plant.workers:
            self.plant.leave(name)
            if is_killed:
                # Of two replicas, the second may leave before the leader knows that the first one is dead.
                self.held[name], self.is_killing = {}, True
        else:
            self.plant.join(name)
            self.plant.workers[name] = ObservedWorker(self.plant.workers[name].record)

    def roll(self) -> None:
        """Another rollout, of a model that has none."""
        records, chance = self.plant.records, self.chance
        view = records.view
        free = [model for model in MODELS if not any(model in each.changes for each in view.open_rollouts)]
        if len(free) < 2:
            return
        model = chance.choice(free)
        before, after = view.assignments[model].version, str(self.versions[model] + 1)
        self.versions[model] += 1
        self.sizes[model, after] = chance.choice((20, 30, 40))
        change = Change(after, before, pools=("cpu",), memory=self.sizes[model, after] * MIB)
        canary = CanaryRule(weights=(0.1,)) if chance.random() < 0.3 else None
        self.rollouts += 1
        records.rollout(f"r{self.rollouts}", PENDING, {model: change}, canary=canary, prepare_seconds=30.0)

    def advance(self) -> None:
        """The leader takes every rollout one step further."""
        for identity in [each.identity for each in self.plant.records.view.open_rollouts]:
            records, plant = self.plant.records, self.plant
            view = records.view
            record = view.rollout(identity)
            assert record is not None
            verdicts = Verdicts({identity: Verdict(self.chance.choice(("wait", "wait", "go", "stop")))})
            placements = plant.placement.placements(view)
            seen = observe(view, plant.workers, verdicts, {}, 0.0, plant.now, {}, placements)
            decision = advance(record, seen)
            if decision.record != record:
                records.put(KEYS.rollout(identity), decision.record)
            if decision.commit is not None:
                records.put(KEYS.epoch, decision.commit)

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
    for _ in range(80):
        course.step()
        match chance.choice(("work", "work", "work", "roll", "drain", "lead", "leave", "kill")):
            case "work":
                course.work(chance.choice(NAMES))
            case "roll":
                course.roll()
            case "drain":
                course.drain(chance.choice(NAMES))
            case "leave":
                course.leave_or_return(chance.choice(NAMES))
            case "kill":
                course.leave_or_return(chance.choice(NAMES), is_killed=True)
            case _:
                course.plant.lead_anew()
