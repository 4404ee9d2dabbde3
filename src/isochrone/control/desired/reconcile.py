"""The rollouts and the epoch that reconcile the committed models with a newly applied fleet.yaml. Pure.

New versions and moves to other pools become rollouts; all other changes become one epoch. A version that was rolled out
or back by hand stands until the file asks for another version than it did before. Models that
change at once and belong together (``with``, or an ensemble and its stages) are one rollout; all that are new are one.
Models that the file no longer has are retired when the rollouts that bring what it asks for are done, those of files
before it included: what is new is served before the old goes, and if one of the rollouts aborts, nothing goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from isochrone.control.fleet.planning.groups import groups_of
from isochrone.control.state.records import Assignment, EpochRecord, EventRecord, ReconciledRecord
from isochrone.control.state.rollout_records import (
    ABORTING,
    DRAINING,
    FAST,
    PENDING,
    STRICT,
    CanaryRule,
    Change,
    CompareRule,
    RolloutRecord,
)

#: The author of rollouts and events that follow from the applied file.
FILE = "fleet.yaml"
#: The event for a model that the file no longer has.
REMOVED = "model removed"


@dataclass(frozen=True, slots=True)
class DesiredModel:
    """What the applied file asks for, for one model."""

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
class Reconciliation:
    """The records to write, in one transaction."""

    reconciled: ReconciledRecord
    rollouts: tuple[RolloutRecord, ...] = ()
    epoch: EpochRecord | None = None
    events: tuple[EventRecord, ...] = ()


def reconcile(
    generation: int,
    desired: Mapping[str, DesiredModel],
    reconciled: ReconciledRecord,
    epoch: EpochRecord,
    open_rollouts: Iterable[RolloutRecord],
    first_number: int,
    now: float,
) -> Reconciliation | None:
    """None: a rollout in progress has to end first. ``first_number``: of the next rollout.

    Rollouts that were started for a file before it, or for the same one by a leader before this one, go on where they
    bring what it asks for.
    """
    open_rollouts = list(open_rollouts)
    for each in open_rollouts:
        if _goes_back(each):
            # Its versions are requested again when it is over.
            reconciled = without_aborted(each, reconciled) or reconciled
    changed = {name for name, model in desired.items() if _is_changed(name, model, reconciled, epoch)}
    coming = [each for each in open_rollouts if _is_coming(each, desired, changed)]
    changing = {name for each in coming for name in each.changes}
    versions = {name: desired[name].version for name in desired if name in changed - changing}
    gone = set(epoch.models) - set(desired)
    for name, served in epoch.models.items():
        if name in desired and name not in changing and set(served.pools) != set(desired[name].pools):
            # A version that was rolled out by hand moves as it is.
            versions.setdefault(name, served.version)
    adjusted = _adjusted(desired, {*versions, *gone, *changing}, epoch)
    # Also for adjusted models: the commit of a rollout writes all its models as they were when it began.
    others = [each for each in open_rollouts if each not in coming]
    if any(name in versions or name in gone or name in adjusted for each in others for name in each.changes):
        return None
    rollouts: list[RolloutRecord] = []
    fresh = {name for name in versions if name not in epoch.models}
    ties = {name: (*model.together, *model.stages) for name, model in desired.items()}
    for names in [fresh, *groups_of(sorted(set(versions) - fresh), ties)]:
        if names:
            identity = f"r{first_number + len(rollouts)}"
            brought = {name: versions[name] for name in sorted(names)}
            rollouts.append(_rollout(identity, brought, desired, epoch, now))
    started = tuple(each.identity for each in (*coming, *rollouts))
    # New models are served before old ones are retired.
    retiring = tuple(sorted(gone)) if started else ()
    versions_asked = {name: model.version for name, model in desired.items()}
    record = ReconciledRecord(generation, versions_asked, retiring, started if retiring else ())
    return Reconciliation(record, tuple(rollouts), *_epoch_after(epoch, adjusted, () if started else gone, now))


def superseded(
    desired: Mapping[str, DesiredModel], open_rollouts: Iterable[RolloutRecord], generation: int
) -> list[RolloutRecord]:
    """Rollouts of earlier files whose versions are no longer desired, with the request to abort."""
    reason = f"superseded by generation {generation} of fleet.yaml"
    return [
        msgspec.structs.replace(each, abort_asked=reason)
        for each in open_rollouts
        if each.by == FILE
        and not each.abort_asked
        and each.state not in (DRAINING, ABORTING)
        and not all(_is_still_asked_for(desired.get(name), change) for name, change in each.changes.items())
    ]


def _is_still_asked_for(desired: DesiredModel | None, change: Change) -> bool:
    if desired is None or set(desired.pools) != set(change.pools):
        return False
    # A version that only moves may be one that was rolled out by hand.
    return not change.is_new or desired.version == change.version


def retire(
    reconciled: ReconciledRecord, epoch: EpochRecord, open_rollouts: Iterable[RolloutRecord], now: float
) -> Reconciliation | None:
    """Remove the models that the reconciled file retires; None: rollouts have to end first, or nothing is to be
    retired."""
    if not reconciled.retiring:
        return None
    waits_for = {*reconciled.rollouts}
    if any(
        each.identity in waits_for or not each.changes.keys().isdisjoint(reconciled.retiring) for each in open_rollouts
    ):
        return None
    record = msgspec.structs.replace(reconciled, retiring=())
    return Reconciliation(record, (), *_epoch_after(epoch, {}, reconciled.retiring, now))


def _epoch_after(
    epoch: EpochRecord, adjusted: Mapping[str, Assignment], gone: Iterable[str], now: float
) -> tuple[EpochRecord | None, tuple[EventRecord, ...]]:
    gone = sorted(set(gone) & set(epoch.models))
    if not gone and not adjusted:
        return None, ()
    models = {name: adjusted.get(name, served) for name, served in epoch.models.items() if name not in gone}
    events = tuple(EventRecord(now, FILE, REMOVED, name) for name in gone)
    return EpochRecord(epoch.epoch + 1, models, "", FILE, now), events


def without_aborted(record: RolloutRecord, reconciled: ReconciledRecord) -> ReconciledRecord | None:
    """The progress record after the abort of one of the file's rollouts; None: it does not change.

    Applying the file again requests those versions again. Models that were to be retired after it stay.
    """
    if record.by != FILE:
        return None
    versions = {
        name: version
        for name, version in reconciled.versions.items()
        if name not in record.changes or record.changes[name].version != version
    }
    retiring = () if record.identity in reconciled.rollouts else reconciled.retiring
    after = msgspec.structs.replace(reconciled, versions=versions, retiring=retiring)
    return after if after != reconciled else None


def _is_changed(name: str, model: DesiredModel, reconciled: ReconciledRecord, epoch: EpochRecord) -> bool:
    served = epoch.models.get(name)
    if served is None:
        return True
    return served.version != model.version and reconciled.versions.get(name) != model.version


def _goes_back(rollout: RolloutRecord) -> bool:
    return rollout.state == ABORTING or (bool(rollout.abort_asked) and rollout.state != DRAINING)


def _is_coming(rollout: RolloutRecord, desired: Mapping[str, DesiredModel], changed: Collection[str]) -> bool:
    """Whether a rollout was started for the file and brings the desired versions. ``changed``: models for which the
    file asks for another version than before."""
    return (
        rollout.by == FILE
        and not _goes_back(rollout)
        and all(
            _is_still_asked_for(desired.get(name), change)
            # A rollout that only moves a model does not bring another version.
            and (name not in changed or desired[name].version == change.version)
            for name, change in rollout.changes.items()
        )
    )


def _rollout(
    identity: str, versions: Mapping[str, str], desired: Mapping[str, DesiredModel], epoch: EpochRecord, now: float
) -> RolloutRecord:
    changes = {}
    for name, version in versions.items():
        model, served = desired[name], epoch.models.get(name)
        before = served.version if served is not None else ""
        stages = model.stages or (served.stages if served is not None and version == before else ())
        left = tuple(pool for pool in served.pools if pool not in model.pools) if served is not None else ()
        changes[name] = Change(version, before, pools=model.pools, stages=stages, memory=model.memory, left=left)
    first = all(not change.before for change in changes.values())
    # A version that only moves needs no strict switch and no evaluation.
    models = [desired[name] for name, change in changes.items() if change.is_new]
    return RolloutRecord(
        identity,
        changes,
        kind="first" if first else "version",
        cutover=STRICT if any(model.cutover == STRICT for model in models) else FAST,
        # Without a served version there is nothing to compare with.
        canary=None if first else next((model.canary for model in models if model.canary is not None), None),
        compare=None if first else next((model.compare for model in models if model.compare is not None), None),
        prepare_seconds=max(desired[name].prepare_seconds for name in changes),
        by=FILE,
        at=now,
        since={PENDING: now},
    )


def _adjusted(desired: Mapping[str, DesiredModel], others: set[str], epoch: EpochRecord) -> dict[str, Assignment]:
    """Models of which only the memory or the stages change. ``others``: those that change otherwise or go."""
    models: dict[str, Assignment] = {}
    for name, served in epoch.models.items():
        if name not in others:
            model = desired[name]
            after = msgspec.structs.replace(served, memory=model.memory, stages=model.stages or served.stages)
            if after != served:
                models[name] = after
    return models
