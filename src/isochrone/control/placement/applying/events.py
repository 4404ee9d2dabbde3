"""What the leader reports of planned pools: each move with its reason, losses, loads that hang, missing replicas."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from operator import attrgetter

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.placement import plan
from isochrone.control.placement.plan import ADD, Move
from isochrone.control.placement.workers import Replicas
from isochrone.control.state.assignment import Placements
from isochrone.control.state.records import EventRecord

_WHO = "placement"
_UNPLACED, _SHORT = attrgetter("unplaced"), attrgetter("short")

_REASONS = {
    plan.RETIRED: "the model is no longer served",
    plan.RESTORE: "the model has too few replicas",
    plan.RULE: "the replica breaks a rule where it is",
    plan.ROOM: "it makes room for another model",
    plan.MEMORY: "the worker has too little memory",
    plan.COLD: "the load does not need it",
    plan.HOT: "the replicas of the model are busy",
    plan.OVERLOAD: "the worker is busy",
    plan.BALANCE: "it balances the load",
    plan.FAILED: "the worker could not load it",
    plan.ADOPTED: "it serves the model there, and no other worker does",
}


def of_move(move: Move) -> EventRecord:
    what = "replica loads" if move.action == ADD else "replica unloads"
    what = "replica stays" if move.reason == plan.ADOPTED else what
    detail = f"worker {move.worker}: {_REASONS.get(move.reason, move.reason)}"
    return EventRecord(time.time(), _WHO, what, move.model, detail)


def of_lost_replicas(lost: Replicas) -> Iterable[EventRecord]:
    by_worker: dict[str, list[str]] = {}
    for model, names in sorted(lost.items()):
        for name in names:
            by_worker.setdefault(name, []).append(model)
    for name, models in sorted(by_worker.items()):
        yield EventRecord(time.time(), _WHO, "replicas lost", name, f"its models are placed again: {', '.join(models)}")


def of_hanging_loads(
    fleet: Fleet, before: Mapping[str, frozenset[str]], now: Mapping[str, frozenset[str]]
) -> Iterable[EventRecord]:
    """Loads that count as failed, once."""
    for name, models in sorted(now.items()):
        for model in sorted(models - before.get(name, frozenset())):
            seconds = fleet.of(model).rollout.prepare_seconds
            detail = f"worker {name}: it is not ready after {seconds:g} s (prepare_seconds)"
            yield EventRecord(time.time(), _WHO, "load hangs", model, detail)


def of_missing_replicas(before: Placements, after: Placements) -> Iterable[EventRecord]:
    """Models that no worker can take, and those that get too few replicas, once."""
    for what, of in (("model is not placed", _UNPLACED), ("replicas are missing", _SHORT)):
        known = {model for each in before.values() for model in of(each)}
        found = {model: why for each in after.values() for model, why in of(each).items() if model not in known}
        for model, why in sorted(found.items()):
            yield EventRecord(time.time(), _WHO, what, model, why)
