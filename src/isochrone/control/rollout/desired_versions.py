"""The versions that each worker should have loaded. Pure.

These are the committed version, the previous one (for an instant rollback, if memory allows), a canary, and versions
that a rollout prepares. Everything else is unloaded.

In a planned pool, memory is never promised twice. A worker that no rollout counted on (it was away when the rollout
began, or it is drained) gets the rollout's versions only if they fit beside what is served there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from isochrone.control.state.assignment import NO_PLACEMENTS, Placements, is_assigned
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord
from isochrone.control.state.rollout_records import (
    ABORTING,
    CANARY,
    COMPARING,
    DRAINING,
    PENDING,
    PREPARING,
    SWITCHING,
    Change,
    RolloutRecord,
)

#: A mark in ``since`` of a rollout: since when no gateway sends requests to its rolled back canary.
WITHDRAWN = "withdrawn"
#: A mark in ``since`` of a rollout: since when it waits for memory in a planned pool.
LACKS_ROOM = "lacks room"
LOADED_IN = frozenset((PREPARING, COMPARING, CANARY, SWITCHING))


@dataclass(frozen=True, slots=True)
class Need:
    """One version of one model that a worker should have."""

    model: str
    version: str
    memory: int
    #: It is unloaded if memory is short.
    spare: bool = False
    #: The rollout that brings it and has not committed it; "": none.
    rollout: str = ""
    #: A committed version has replaced it, and gateways that have not seen the commit may still ask for it.
    is_replaced: bool = False


def desired_versions(
    worker: WorkerRecord,
    epoch: EpochRecord,
    rollouts: Iterable[RolloutRecord],
    placements: Placements = NO_PLACEMENTS,
) -> dict[str, frozenset[str]]:
    """By model: the versions that a worker should have, exactly."""
    rollouts = list(rollouts)
    needs = needed(worker, epoch, rollouts, placements)
    if worker.memory:
        counted = needs
        if worker.pool in placements and any(map(_waits_for_room, rollouts)):
            counted = needed(worker, epoch, map(_as_if_begun, rollouts), placements)
        over = _bytes(counted) + reserved_bytes(worker, placements) - worker.memory
        # The largest first, so that as few as possible are unloaded.
        for need in sorted((need for need in counted.values() if need.spare), key=lambda need: -need.memory):
            if over <= 0:
                break
            over -= need.memory
            del needs[need.model, need.version]
        if worker.pool in placements:
            needs = _fitting(needs, worker.memory)
    return versions_of(needs)


def versions_of(needs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """By model: its versions."""
    found: dict[str, set[str]] = {}
    for model, version in needs:
        found.setdefault(model, set()).add(version)
    return {model: frozenset(versions) for model, versions in found.items()}


def _fitting(needs: dict[tuple[str, str], Need], memory: int) -> dict[tuple[str, str], Need]:
    """The needs that fit into the memory of a worker. Versions that were replaced go first: where rollouts counted on
    them, they fit. Then the versions of rollouts, all of one together, the latest rollout first. What is committed
    stays."""
    for key in [key for key, need in needs.items() if need.is_replaced]:
        if _bytes(needs) > memory:
            needs = {each: need for each, need in needs.items() if each != key}
    identities = [rollout for rollout in dict.fromkeys(need.rollout for need in needs.values()) if rollout]
    while identities and _bytes(needs) > memory:
        gone = identities.pop()
        needs = {key: need for key, need in needs.items() if need.rollout != gone}
    return needs


def _bytes(needs: Mapping[tuple[str, str], Need]) -> int:
    return sum(need.memory for need in needs.values())


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
        if rollout.state in LOADED_IN
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
    rollouts = list(rollouts)
    is_planned = worker.pool in placements
    brought = {
        (model, change.version): (rollout.identity, change.memory)
        for rollout in rollouts
        if is_planned and rollout.state in LOADED_IN
        for model, change in rollout.changes.items()
    }
    needs: dict[tuple[str, str], Need] = {}

    def add(need: Need) -> None:
        known = needs.get((need.model, need.version))
        if need.version and (known is None or known.spare):
            needs[need.model, need.version] = need

    for model, assignment in epoch.models.items():
        if not is_assigned(worker, model, assignment.pools, placements):
            continue
        add(Need(model, assignment.version, assignment.memory))
        if assignment.canary is not None:
            version = assignment.canary.version
            identity, memory = brought.get((model, version), ("", assignment.memory))
            add(Need(model, version, memory, rollout=identity))
        if assignment.previous and (model, assignment.previous) not in needs:
            memory = _bytes_of_previous(assignment) if is_planned else assignment.memory
            add(Need(model, assignment.previous, memory, spare=True))
    for rollout in rollouts:
        for model, change in rollout.changes.items():
            serves = is_assigned(worker, model, change.pools, placements)
            if serves and (rollout.state in LOADED_IN or _is_being_withdrawn(rollout)):
                if rollout.goes_after(worker):
                    continue
                add(Need(model, change.version, change.memory, rollout=rollout.identity))
            elif rollout.state == DRAINING and (serves or is_assigned(worker, model, change.left, placements)):
                # Gateways that have not seen the commit send requests to it: not spare until the rollout is done.
                memory = _bytes_before(change, epoch.models.get(model)) if is_planned else change.memory
                add(Need(model, change.before, memory, is_replaced=serves))
    return needs


def _bytes_of_previous(assignment: Assignment) -> int:
    """An earlier release did not record the size of the previous version."""
    return assignment.previous_memory or assignment.memory


def _bytes_before(change: Change, assignment: Assignment | None) -> int:
    """Of the version that a change replaces. Where it is not recorded, the most that is known of the model."""
    if change.before_memory:
        return change.before_memory
    return max(change.memory, *((assignment.memory, assignment.previous_memory) if assignment is not None else (0,)))


def _waits_for_room(rollout: RolloutRecord) -> bool:
    return rollout.state == PENDING and LACKS_ROOM in rollout.since


def _as_if_begun(rollout: RolloutRecord) -> RolloutRecord:
    """As if a rollout that waits for memory had begun: previous versions leave before it does."""
    return as_if_preparing(rollout) if _waits_for_room(rollout) else rollout


def at_once(rollouts: Iterable[RolloutRecord]) -> list[RolloutRecord]:
    """The same rollouts as if no worker waited for another one's first load: what all of them will load."""
    return [msgspec.structs.replace(each, first_loads={}) if each.first_loads else each for each in rollouts]


def _is_being_withdrawn(rollout: RolloutRecord) -> bool:
    """Whether a canary was rolled back and requests for it may still arrive, as not every gateway has seen it."""
    return rollout.state == ABORTING and bool(rollout.epoch) and WITHDRAWN not in rollout.since


def reserved_bytes(worker: WorkerRecord, placements: Placements) -> int:
    """Bytes that stay free for models that move. Versions that only stand by make room for them."""
    placement = placements.get(worker.pool)
    return placement.reserved.get(worker.name, 0) if placement is not None else 0


def as_if_preparing(rollout: RolloutRecord) -> RolloutRecord:
    return RolloutRecord(rollout.identity, rollout.changes, PREPARING)


def differing(models: Mapping[str, Iterable[str]], present: Mapping[str, Iterable[str]]) -> list[str]:
    """Models whose versions on a worker are not the desired ones."""
    names = {*models, *present}
    return sorted(name for name in names if set(models.get(name, ())) != set(present.get(name, ())))
