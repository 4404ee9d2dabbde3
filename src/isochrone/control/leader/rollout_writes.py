"""The transaction that a rollout's decision becomes: conditional on everything it was decided by. Pure."""

from __future__ import annotations

from collections.abc import Callable

from isochrone.control.desired.reconcile import FILE, without_aborted
from isochrone.control.rollout.decision import Decision
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.rollout_records import ABORTED, RolloutRecord
from isochrone.control.state.view import View
from isochrone.store.base import Compare, Delete, Put

#: Makes the operation that writes an event: who, what, about, detail.
MakeEvent = Callable[[str, str, str, str], Put]


def rollout_writes(
    view: View, record: RolloutRecord, decision: Decision, event: MakeEvent
) -> tuple[list[Compare], list[Put | Delete]]:
    """Conditions and operations; no operations: nothing is to be written. ``record``: the rollout before."""
    keys = view.keys
    after = decision.record
    compares = [view.unchanged(keys.rollout(record.identity))]
    operations: list[Put | Delete] = []
    if after != record:
        operations.append(Put(keys.rollout(record.identity), encode(after)))
    if after.state == ABORTED != record.state:
        followed = view.reconciled
        reconciled = without_aborted(record, followed)
        if reconciled is not None:
            compares.append(view.unchanged(keys.reconciled))
            operations.append(Put(keys.reconciled, encode(reconciled)))
            if followed.retiring and not reconciled.retiring:
                stay = f"{', '.join(followed.retiring)}: rollout {record.identity} of the same file was aborted"
                operations.append(event(FILE, "retirement called off", record.identity, stay))
    if decision.commit is not None:
        # No gateway may have joined, left or switched since the decision.
        compares += [view.unchanged(key) for key in (keys.epoch, keys.switch, keys.gateway_set)]
        operations += epoch_writes(keys, decision.commit)
    if decision.switch is not None:
        compares += [view.unchanged(key) for key in (keys.switch, keys.epoch) if decision.commit is None]
        operations.append(Put(keys.switch, encode(decision.switch)))
    elif decision.ends_switch:
        if decision.commit is None:
            compares.append(view.unchanged(keys.switch))
        operations.append(Delete(keys.switch))
    if decision.event:
        operations.append(event(record.by, f"rollout {decision.event}", record.identity, record.summary))
    return compares, operations


def epoch_writes(keys: Keys, record: EpochRecord) -> tuple[Put, Put]:
    """The commit and its copy."""
    value = encode(record)
    return Put(keys.epoch, value), Put(keys.epoch_copy, value)
