"""A fleet with one planned pool and the leader's part in its placement, without a store and without processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from fleet_records import KEYS, Records
from isochrone.control.leader.model_placement import ModelPlacement
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.placement.figures import Figures, figures_record
from isochrone.control.rollout.desired_versions import desired_versions
from isochrone.control.rollout.observed_state import READY, Failure, Loaded, ObservedWorker
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, EventRecord
from isochrone.control.state.view import View
from isochrone.store.base import Compare, Delete, Put

MIB = 2**20
LEASE = 4.0
TEXT = """
name: plant
store: {lease_seconds: 4}
pools:
  cpu: {workers: 3, memory: 100MiB, replicas: planned}
models: {a: {memory: 40MiB}, b: {memory: 40MiB}, c: {memory: 40MiB}}
"""
MODELS = ("a", "b", "c")
EVENT = EventRecord(1.0, "me", "drained")


class RecordsOfLeader(LeaderRecords):
    """Writes to records without a store."""

    def __init__(self, records: Records) -> None:
        self.keys = KEYS
        self.records = records

    def view(self) -> View:
        return self.records.view

    async def write(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], *, durable: bool = True
    ) -> bool:
        decision: Any = SimpleNamespace(compares=compares, operations=operations)
        return self.records.apply(decision)

    async def write_transient(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> None:
        await self.write(compares, operations)


class Plant:
    """A fleet with three workers of 100 MiB and models of 40 MiB, and the leader's part."""

    def __init__(self, text: str = TEXT, versions: Mapping[str, Assignment] | None = None) -> None:
        self.records = Records(text, dict(versions) if versions is not None else committed())
        self.now = 0.0
        self.workers: dict[str, ObservedWorker] = {}
        self.placement = ModelPlacement(self.leader, lambda: self.now)

    @property
    def leader(self) -> RecordsOfLeader:
        return RecordsOfLeader(self.records)

    def measure(self, figures: Figures) -> None:
        """What the leader has recorded of models."""
        self.records.put(KEYS.figures, figures_record(figures))

    def join(self, *names: str, models: Sequence[str] = (), pool: str = "cpu") -> None:
        for name in names:
            record = WorkerRecord(name, f"host-{name}", 1, 1, pool=pool, memory=100 * MIB)
            self.records.put(KEYS.worker(name), record)
            self.workers[name] = ObservedWorker(record, {model: {"1": Loaded(READY)} for model in models})

    def lead_anew(self) -> None:
        """Another controller leads: no worker has reported to it."""
        self.placement = ModelPlacement(self.leader, lambda: self.now)
        self.workers = {name: ObservedWorker(worker.record) for name, worker in self.workers.items()}

    def leave(self, name: str) -> None:
        del self.records.entries[KEYS.worker(name)]
        del self.workers[name]

    def step(self, seconds: float = 0.0) -> bool:
        self.now += seconds
        try:
            # Nothing here waits: without an event loop, a step takes a fifth of the time.
            self.placement.reconcile(self.records.view, self.workers).send(None)
        except StopIteration as end:
            return bool(end.value)
        raise AssertionError("it waits")

    def load(self, failing: Collection[tuple[str, str]] = ()) -> None:
        """Workers do what the record asks for. ``failing``: workers with models that they cannot load. An ensemble
        fails without its stages."""
        view = self.records.view
        epoch = view.epoch or EpochRecord(0)
        for name, worker in self.workers.items():
            wanted = desired_versions(worker.record, epoch, view.open_rollouts, view.placements)
            broken = {model for model in wanted if (name, model) in failing}
            broken |= {model for model in wanted if broken & {*epoch.models[model].stages}} if broken else set()
            models = {
                model: {version: Loaded(READY) for version in versions}
                for model, versions in wanted.items()
                if model not in broken
            }
            failures = {model: Failure(wanted[model], "broken") for model in broken}
            self.workers[name] = ObservedWorker(worker.record, models, failures)

    def settle(self) -> None:
        for _ in range(20):
            busy = self.step(1.0)
            self.load()
            if not busy:
                return
        raise AssertionError("it does not settle")

    @property
    def replicas(self) -> dict[str, tuple[str, ...]]:
        return self.records.view.placements["cpu"].replicas

    @property
    def events(self) -> list[tuple[str, str, str]]:
        return [(event.what, event.about, event.detail) for _, event in self.records.view.events()]


def committed(*models: str) -> dict[str, Assignment]:
    return {model: Assignment("1", pools=("cpu",), memory=40 * MIB) for model in models or MODELS}


def started() -> Plant:
    plant = Plant()
    plant.join("cpu-1", "cpu-2", "cpu-3")
    plant.settle()
    return plant
