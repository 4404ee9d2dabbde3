"""What the leader does when another fleet.yaml was applied: rollouts for new versions, one epoch for the rest. Pure.

A version that was rolled out or back by hand stands until the file asks for another one than it did before. Models that
change at once and belong together (``with``, or an ensemble and its stages) are one rollout; all that are new are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from isochrone.control.records import (
    FAST,
    PENDING,
    STRICT,
    Assignment,
    CanaryRule,
    Change,
    CompareRule,
    ConvergedRecord,
    EpochRecord,
    EventRecord,
    RolloutRecord,
)

#: Who asks for what the applied file asks for.
FILE = "fleet.yaml"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the file asks for of one model."""

    version: str
    pools: tuple[str, ...]
    stages: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    memory: int = 0
    cutover: str = FAST
    canary: CanaryRule | None = None
    compare: CompareRule | None = None
    prepare_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Steps:
    """What is to be written, all at once."""

    converged: ConvergedRecord
    rollouts: tuple[RolloutRecord, ...] = ()
    epoch: EpochRecord | None = None
    events: tuple[EventRecord, ...] = ()


def follow(
    generation: int,
    asked: Mapping[str, Asked],
    converged: ConvergedRecord,
    epoch: EpochRecord,
    open_rollouts: Iterable[RolloutRecord],
    first_number: int,
    now: float,
) -> Steps | None:
    """None: something is under way that has to end first. ``first_number``: of the next rollout."""
    changed = {name for name, model in asked.items() if _is_changed(name, model, converged, epoch)}
    gone = set(epoch.models) - set(asked)
    busy = {name for rollout in open_rollouts for name in rollout.changes}
    if busy & (changed | gone):
        return None
    rollouts: list[RolloutRecord] = []
    fresh = {name for name in changed if name not in epoch.models}
    for names in [fresh, *_groups(changed - fresh, asked)]:
        if names:
            identity = f"r{first_number + len(rollouts)}"
            rollouts.append(_rollout(identity, names, asked, epoch, now))
    events = [EventRecord(now, FILE, "model removed", name) for name in sorted(gone)]
    record = ConvergedRecord(generation, {name: model.version for name, model in asked.items()})
    return Steps(record, tuple(rollouts), _adjusted(asked, gone, epoch, now), tuple(events))


def given_up(record: RolloutRecord, converged: ConvergedRecord) -> ConvergedRecord | None:
    """What has been followed, once a rollout of the file's own is aborted; None: as it was.

    Nobody decided against the file then: applying it again asks for those versions again.
    """
    if record.by != FILE:
        return None
    versions = {
        name: version
        for name, version in converged.versions.items()
        if name not in record.changes or record.changes[name].version != version
    }
    return msgspec.structs.replace(converged, versions=versions) if versions != converged.versions else None


def _is_changed(name: str, model: Asked, converged: ConvergedRecord, epoch: EpochRecord) -> bool:
    served = epoch.models.get(name)
    if served is None:
        return True
    return served.version != model.version and converged.versions.get(name) != model.version


def _groups(names: set[str], asked: Mapping[str, Asked]) -> list[set[str]]:
    """What belongs together, among models that change."""
    groups: list[set[str]] = []
    for name in sorted(names):
        joined = {name, *(other for other in (*asked[name].together, *asked[name].stages) if other in names)}
        for group in [group for group in groups if group & joined]:
            groups.remove(group)
            joined |= group
        groups.append(joined)
    return groups


def _rollout(
    identity: str, names: Iterable[str], asked: Mapping[str, Asked], epoch: EpochRecord, now: float
) -> RolloutRecord:
    changes = {}
    for name in sorted(names):
        model, served = asked[name], epoch.models.get(name)
        before = served.version if served is not None else ""
        changes[name] = Change(model.version, before, pools=model.pools, stages=model.stages, memory=model.memory)
    first = all(not change.before for change in changes.values())
    models = [asked[name] for name in changes]
    return RolloutRecord(
        identity,
        changes,
        kind="first" if first else "version",
        cutover=STRICT if any(model.cutover == STRICT for model in models) else FAST,
        # Where nothing was served there is nothing to compare with.
        canary=None if first else next((model.canary for model in models if model.canary is not None), None),
        compare=None if first else next((model.compare for model in models if model.compare is not None), None),
        prepare_seconds=max(model.prepare_seconds for model in models),
        by=FILE,
        at=now,
        since={PENDING: now},
    )


def _adjusted(asked: Mapping[str, Asked], gone: set[str], epoch: EpochRecord, now: float) -> EpochRecord | None:
    """The same versions, elsewhere or without some models; None: nothing of the kind."""
    models: dict[str, Assignment] = {}
    for name, served in epoch.models.items():
        if name in gone:
            continue
        model = asked[name]
        stages = model.stages or served.stages
        models[name] = msgspec.structs.replace(served, pools=model.pools, memory=model.memory, stages=stages)
    if models == epoch.models:
        return None
    return EpochRecord(epoch.epoch + 1, models, "", FILE, now)
