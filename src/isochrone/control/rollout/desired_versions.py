"""The versions that each worker should have loaded, and whether they fit into its memory. Pure.

These are the committed version, the previous one (for an instant rollback, if memory allows), a canary, and versions
that a rollout prepares. Everything else is unloaded.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from isochrone.control.state.assignment import NO_PLACEMENTS, Placements, is_assigned
from isochrone.control.state.records import (
    ABORTING,
    CANARY,
    COMPARING,
    DRAINING,
    PREPARING,
    SWITCHING,
    EpochRecord,
    RolloutRecord,
    WorkerRecord,
)

#: A mark in ``since`` of a rollout: since when no gateway sends requests to its rolled back canary.
WITHDRAWN = "withdrawn"
_LOADED_IN = frozenset((PREPARING, COMPARING, CANARY, SWITCHING))


@dataclass(frozen=True, slots=True)
class Need:
    """One version of one model that a worker should have."""

    model: str
    version: str
    memory: int
    #: It is unloaded if memory is short.
    spare: bool = False


def desired_versions(
    worker: WorkerRecord,
    epoch: EpochRecord,
    rollouts: Iterable[RolloutRecord],
    placements: Placements = NO_PLACEMENTS,
) -> dict[str, frozenset[str]]:
    """By model: the versions that a worker should have, exactly."""
    needs = needed(worker, epoch, rollouts, placements)
    if worker.memory:
        over = sum(need.memory for need in needs.values()) + _reserved(worker, placements) - worker.memory
        # The largest first, so that as few as possible are unloaded.
        for need in sorted((need for need in needs.values() if need.spare), key=lambda need: -need.memory):
            if over <= 0:
                break
            over -= need.memory
            del needs[need.model, need.version]
    found: dict[str, set[str]] = {}
    for model, version in needs:
        found.setdefault(model, set()).add(version)
    return {model: frozenset(versions) for model, versions in found.items()}


def spare(
    worker: WorkerRecord,
    epoch: EpochRecord,
    rollouts: Iterable[RolloutRecord],
    placements: Placements = NO_PLACEMENTS,
) -> dict[str, frozenset[str]]:
    """The desired versions that only stand by: loads of served or prepared versions must not wait for theirs."""
    rollouts = list(rollouts)
    served = {
        (model, version)
        for model, assignment in epoch.models.items()
        for version in (assignment.version, assignment.canary.version if assignment.canary is not None else "")
    }
    brought = {
        (model, change.version)
        for rollout in rollouts
        if rollout.state in _LOADED_IN
        for model, change in rollout.changes.items()
    }
    found = {
        model: frozenset(version for version in versions if (model, version) not in served | brought)
        for model, versions in desired_versions(worker, epoch, rollouts, placements).items()
    }
    return {model: versions for model, versions in found.items() if versions}


def stages_of(epoch: EpochRecord, rollouts: Iterable[RolloutRecord]) -> dict[str, frozenset[str]]:
    """By ensemble: the models that it runs, in the committed epoch and in rollouts."""
    found: dict[str, frozenset[str]] = {name: frozenset(model.stages) for name, model in epoch.models.items()}
    for rollout in rollouts:
        for name, change in rollout.changes.items():
            found[name] = found.get(name, frozenset()) | frozenset(change.stages)
    return found


def needed(
    worker: WorkerRecord,
    epoch: EpochRecord,
    rollouts: Iterable[RolloutRecord],
    placements: Placements = NO_PLACEMENTS,
) -> dict[tuple[str, str], Need]:
    """The desired versions with their memory, whether or not they fit."""
    needs: dict[tuple[str, str], Need] = {}

    def add(model: str, version: str, memory: int, spare: bool = False) -> None:
        known = needs.get((model, version))
        if version and (known is None or known.spare):
            needs[model, version] = Need(model, version, memory, spare)

    for model, assignment in epoch.models.items():
        if not is_assigned(worker, model, assignment.pools, placements):
            continue
        add(model, assignment.version, assignment.memory)
        if assignment.canary is not None:
            add(model, assignment.canary.version, assignment.memory)
        if assignment.previous and (model, assignment.previous) not in needs:
            add(model, assignment.previous, assignment.memory, spare=True)
    for rollout in rollouts:
        for model, change in rollout.changes.items():
            serves = is_assigned(worker, model, change.pools, placements)
            if serves and (rollout.state in _LOADED_IN or _is_being_withdrawn(rollout)):
                if rollout.goes_after(worker):
                    continue
                add(model, change.version, change.memory)
            elif rollout.state == DRAINING and (serves or is_assigned(worker, model, change.left, placements)):
                # Gateways that have not seen the commit send requests to it: not spare until the rollout is done.
                add(model, change.before, change.memory)
    return needs


def at_once(rollouts: Iterable[RolloutRecord]) -> list[RolloutRecord]:
    """The same rollouts as if no worker waited for another one's first load: what all of them will load."""
    return [msgspec.structs.replace(each, first_loads={}) if each.first_loads else each for each in rollouts]


def _is_being_withdrawn(rollout: RolloutRecord) -> bool:
    """Whether a canary was rolled back and requests for it may still arrive, as not every gateway has seen it."""
    return rollout.state == ABORTING and bool(rollout.epoch) and WITHDRAWN not in rollout.since


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
    reserved = _reserved(worker, placements)
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
    others = [other for other in rollouts if other.identity != rollout.identity]
    needs = needed(worker, epoch, [*others, _as_if_preparing(rollout)], placements)
    return sum(need.memory for need in needs.values() if not need.spare and (models is None or need.model in models))


def _reserved(worker: WorkerRecord, placements: Placements) -> int:
    """Bytes that stay free for models that move. Versions that only stand by make room for them."""
    placement = placements.get(worker.pool)
    return placement.reserved.get(worker.name, 0) if placement is not None else 0


def _as_if_preparing(rollout: RolloutRecord) -> RolloutRecord:
    return RolloutRecord(rollout.identity, rollout.changes, PREPARING)


def differing(models: Mapping[str, Iterable[str]], present: Mapping[str, Iterable[str]]) -> list[str]:
    """Models whose versions on a worker are not the desired ones."""
    names = {*models, *present}
    return sorted(name for name in names if set(models.get(name, ())) != set(present.get(name, ())))


def _size(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"
