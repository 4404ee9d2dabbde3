"""Memory of workers and new versions: whether a rollout's versions fit, and which loads have to wait. Pure.

Outside planned pools, a rollout that does not fit is aborted. In a planned pool it waits: other models move away, or
what holds the memory is unloaded.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from isochrone.control.rollout.desired_versions import (
    Need,
    as_if_preparing,
    at_once,
    desired_versions,
    needed,
    reserved_bytes,
    stages_of,
    versions_of,
)
from isochrone.control.rollout.observed_state import UNAVAILABLE, ObservedState, ObservedWorker
from isochrone.control.state.assignment import NO_PLACEMENTS, Placements, is_assigned
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.rollout_records import RolloutRecord


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a rollout cannot load its versions now."""

    #: What it waits for, and why it is aborted if that takes too long.
    note: str
    reason: str
    #: Whether the memory may become free while it waits.
    may_end: bool = True


def shortage_at_start(record: RolloutRecord, observed: ObservedState) -> Shortage | None:
    """Why a rollout cannot begin; None: its versions fit everywhere."""
    for model, change in record.changes.items():
        for worker in observed.assigned(model, change.pools).values():
            found = _lack(record, worker, observed) or _moves(record, worker, observed)
            found = found or _unloads(record, worker, observed)
            if found is not None:
                return found
    return None


def shortage(record: RolloutRecord, workers: Iterable[ObservedWorker], observed: ObservedState) -> Shortage | None:
    """Why a rollout that has begun cannot go on: a worker that joined since may not have enough memory."""
    for worker in workers:
        found = _lack(record, worker, observed)
        if found is None:
            continue
        # Of two rollouts that do not fit together, the later one is left out, and only that one waits.
        if worker.record.pool not in observed.placements or _is_left_out(record, worker, observed):
            return found
    return None


def _lack(record: RolloutRecord, worker: ObservedWorker, observed: ObservedState) -> Shortage | None:
    """In a planned pool, the leader moves other models away from a worker where the new versions do not fit."""
    known = (worker.record, observed.epoch, observed.rollouts, record, observed.placements)
    lack = lack_of_memory(*known)
    if not lack:
        return None
    can_move = worker.record.pool in observed.placements and fits_alone(*known)
    return Shortage(f"waits until other models have left worker {worker.record.name}: {lack}", lack, can_move)


def _moves(record: RolloutRecord, worker: ObservedWorker, observed: ObservedState) -> Shortage | None:
    """Models that move have memory of the worker until they have left it, or are loaded there."""
    figures = waits_for_memory(worker.record, observed.epoch, observed.rollouts, record, observed.placements)
    if not figures:
        return None
    limit = f"within {record.prepare_seconds:g} s"
    return Shortage(
        f"waits until models that move have left worker {worker.record.name}, or are loaded there: {figures}",
        f"models that move did not leave memory for it {limit}: {figures}",
    )


def _unloads(record: RolloutRecord, worker: ObservedWorker, observed: ObservedState) -> Shortage | None:
    """Versions that leave a worker of a planned pool hold memory until it reports them no more."""
    name, memory = worker.record.name, worker.record.memory
    if not memory or worker.record.pool not in observed.placements:
        return None
    if worker.models is None:
        what = f"what worker {name} has in its memory is not known"
        return Shortage(f"waits for a report: {what}", f"{what}: it sent no report within {record.prepare_seconds:g} s")
    rollouts = _with(observed.rollouts, record)
    desired = desired_versions(worker.record, observed.epoch, rollouts, observed.placements)
    sizes = _Sizes(worker.record, observed.epoch, rollouts, observed.placements)
    held, wanted = _held(worker), _pairs(desired)
    total = sizes.sum(held | wanted)
    if total <= memory or not held - wanted:
        return None
    shown = ", ".join(f"{model} {version}" for model, version in sorted(held - wanted))
    figures = f"{_size(total)} with the new versions on worker {name}, which has {_size(memory)}"
    limit = f"within {record.prepare_seconds:g} s"
    return Shortage(
        f"waits until worker {name} has unloaded {shown}: {figures}",
        f"worker {name} did not unload {shown} {limit}: {figures}",
    )


def _is_left_out(record: RolloutRecord, worker: ObservedWorker, observed: ObservedState) -> bool:
    desired = desired_versions(worker.record, observed.epoch, observed.rollouts, observed.placements)
    return any(
        change.version not in desired.get(model, ())
        for model, change in record.changes.items()
        if observed.is_assigned(worker, model, change.pools)
    )


def loadable_versions(
    worker: ObservedWorker,
    epoch: EpochRecord,
    rollouts: Iterable[RolloutRecord],
    placements: Placements = NO_PLACEMENTS,
) -> dict[str, frozenset[str]]:
    """By model: the versions that a worker should have now. These are the desired ones; in a planned pool, those whose
    memory is still held by versions that leave the worker come once it reports these no more."""
    rollouts = list(rollouts)
    desired = desired_versions(worker.record, epoch, rollouts, placements)
    if not worker.record.memory or worker.record.pool not in placements:
        return desired
    held, wanted = _held(worker), _pairs(desired)
    if not held - wanted:
        return desired
    sizes = _Sizes(worker.record, epoch, rollouts, placements)
    free = worker.record.memory - sizes.sum(held)
    late = set()
    for key in sorted(wanted - held, key=sizes.rank):
        free -= sizes.of(key)
        if free < 0 and sizes.of(key):
            late.add(key)
    return versions_of(sorted(wanted - _with_ensembles(late, wanted - held, stages_of(epoch, rollouts))))


def _with_ensembles(
    late: set[tuple[str, str]], loads: Iterable[tuple[str, str]], stages: dict[str, frozenset[str]]
) -> set[tuple[str, str]]:
    """Loads that wait, and those of ensembles that run them: a load without its stages would fail."""
    while True:
        models = {model for model, _ in late}
        more = {key for key in loads if stages.get(key[0], frozenset()) & models} - late
        if not more:
            return late
        late = late | more


class _Sizes:
    """Bytes of the versions on a worker of a planned pool."""

    def __init__(
        self, worker: WorkerRecord, epoch: EpochRecord, rollouts: Iterable[RolloutRecord], placements: Placements
    ) -> None:
        self._needs: dict[tuple[str, str], Need] = needed(worker, epoch, at_once(rollouts), placements)
        self._order = {key: place for place, key in enumerate(self._needs)}
        self._models = placements[worker.pool].memory
        self._epoch = epoch

    def of(self, version: tuple[str, str]) -> int:
        """Of a version that nothing needs: what the model's versions take."""
        if need := self._needs.get(version):
            return need.memory
        served = self._epoch.models.get(version[0])
        return max(self._models.get(version[0], 0), served.memory if served is not None else 0)

    def sum(self, versions: Iterable[tuple[str, str]]) -> int:
        return sum(map(self.of, versions))

    def rank(self, version: tuple[str, str]) -> tuple[bool, int]:
        """What is served comes first, then what is prepared, then what stands by."""
        need = self._needs.get(version)
        return need is None or need.spare, self._order.get(version, len(self._order))


def _held(worker: ObservedWorker) -> set[tuple[str, str]]:
    """The versions that take memory of a worker."""
    return {
        (model, version)
        for model, versions in (worker.models or {}).items()
        for version, loaded in versions.items()
        if loaded.state != UNAVAILABLE
    }


def _pairs(versions: dict[str, frozenset[str]]) -> set[tuple[str, str]]:
    return {(model, version) for model, each in versions.items() for version in each}


# Figures from the records alone.


def lack_of_memory(
    worker: WorkerRecord,
    epoch: EpochRecord,
    rollouts: Iterable[RolloutRecord],
    rollout: RolloutRecord,
    placements: Placements = NO_PLACEMENTS,
) -> str:
    """Why the new versions of a rollout do not fit on a worker; "": they do, as far as is known."""
    if not worker.memory:
        # Before anything is counted: a fleet that states no memory has thousands of models and workers to ask about.
        return ""
    total = _needed_bytes(worker, epoch, rollouts, rollout, placements)
    if total <= worker.memory:
        return ""
    new = ", ".join(
        f"{model} version {change.version} needs {_size(change.memory)}"
        for model, change in rollout.changes.items()
        if is_assigned(worker, model, change.pools, placements)
    )
    return (
        f"{new}; with what is served that makes {_size(total)} on worker {worker.name}, "
        f"which has {_size(worker.memory)} (memory of pool {worker.pool} and of the models in fleet.yaml)"
    )


def waits_for_memory(
    worker: WorkerRecord,
    epoch: EpochRecord,
    rollouts: Iterable[RolloutRecord],
    rollout: RolloutRecord,
    placements: Placements,
) -> str:
    """Why the new versions of a rollout fit on a worker only after models that move there have moved; "": they fit."""
    reserved = reserved_bytes(worker, placements)
    if not worker.memory or not reserved:
        return ""
    total = _needed_bytes(worker, epoch, rollouts, rollout, placements)
    if total + reserved <= worker.memory:
        return ""
    return (
        f"{_size(total)} with the new versions, and {_size(reserved)} for models that move, "
        f"on worker {worker.name}, which has {_size(worker.memory)}"
    )


def fits_alone(
    worker: WorkerRecord,
    epoch: EpochRecord,
    rollouts: Iterable[RolloutRecord],
    rollout: RolloutRecord,
    placements: Placements,
) -> bool:
    """Whether all versions of the models of a rollout would fit on a worker without other models."""
    return _needed_bytes(worker, epoch, rollouts, rollout, placements, rollout.changes) <= worker.memory


def _needed_bytes(
    worker: WorkerRecord,
    epoch: EpochRecord,
    rollouts: Iterable[RolloutRecord],
    rollout: RolloutRecord,
    placements: Placements,
    models: Container[str] | None = None,
) -> int:
    """With the new versions of a rollout, without versions that only stand by; ``models``: of these alone."""
    if worker.pool in placements:
        # Also what other rollouts load later: the first of two must not be aborted by the second.
        rollouts = at_once(rollouts)
    needs = needed(worker, epoch, _with(rollouts, rollout), placements)
    return sum(need.memory for need in needs.values() if not need.spare and (models is None or need.model in models))


def _with(rollouts: Iterable[RolloutRecord], rollout: RolloutRecord) -> list[RolloutRecord]:
    """The rollouts as if one of them had begun."""
    others = [other for other in rollouts if other.identity != rollout.identity]
    return [*others, as_if_preparing(rollout)]


def _size(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"
