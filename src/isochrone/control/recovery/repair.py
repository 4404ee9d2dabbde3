"""Reports records that cannot be read, and repairs those that would stop the leader. Pure.

Every such record is reported once, as an event. Most are ignored until their owner rewrites them. Three would stop the
leader and are rewritten: the epoch is restored from its copy, the switch is ended without a commit (also one that no
rollout owns), and the progress record is written as if the fleet record had been reconciled. An epoch whose copy cannot
be read either waits for a user (``rebuild``). Must never treat an unreadable record as absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from isochrone.control.state.codec import encode
from isochrone.control.state.records import EpochRecord, EventRecord, Fault, ReconciledRecord
from isochrone.control.state.view import View
from isochrone.store.base import Compare, Delete, Put

#: The author and the kind of these events.
LEADER = "leader"
UNREADABLE = "record cannot be read"
#: Events of one step: a store full of bad records must not fill a transaction.
_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Repair:
    """One transaction. Nothing else may be decided before it is written."""

    compares: tuple[Compare, ...]
    operations: tuple[Put | Delete, ...]
    event: EventRecord


def unreported(view: View, reported: Collection[Fault], now: float) -> list[tuple[Fault, EventRecord]]:
    """Faults that have not been reported, with their events."""
    faults = [fault for fault in view.faults() if fault not in reported]
    if not faults:
        return []
    reported_before = {(event.about, event.detail) for _, event in view.events() if event.what == UNREADABLE}
    events = [(fault, EventRecord(now, LEADER, UNREADABLE, fault.key, _detail(fault))) for fault in faults]
    return [(fault, event) for fault, event in events if (event.about, event.detail) not in reported_before][:_AT_ONCE]


def _detail(fault: Fault) -> str:
    return f"revision {fault.revision}: {fault.reason}"


def find_repair(view: View, desired: Mapping[str, str], now: float) -> Repair | None:
    """None: nothing needs a repair. ``desired``: the versions that the applied file asks for."""
    keys = view.keys
    if view.is_unreadable(keys.epoch):
        copy = view.read(keys.epoch_copy, EpochRecord)
        if copy is None:
            return None
        # A new number, so that gateways that serve the lost epoch take this one for the current one.
        epoch = msgspec.structs.replace(copy, epoch=copy.epoch + 1, by=LEADER, at=now)
        value = encode(epoch)
        return Repair(
            (view.unchanged(keys.epoch), view.unchanged(keys.epoch_copy)),
            (Put(keys.epoch, value), Put(keys.epoch_copy, value)),
            EventRecord(now, LEADER, "epoch restored", f"epoch {epoch.epoch}", f"as epoch {copy.epoch} was"),
        )
    if view.is_unreadable(keys.switch):
        ended = EventRecord(now, LEADER, "switch ended", "", "its record cannot be read; nothing was committed")
        return Repair((view.unchanged(keys.switch),), (Delete(keys.switch),), ended)
    switch = view.switch
    if switch is not None:
        owner = view.rollout(switch.rollout)
        if owner is None or owner.is_over:
            why = "is over" if owner is not None else "is absent or cannot be read"
            ended = EventRecord(now, LEADER, "switch ended", switch.identity, f"its rollout {why}")
            compares = (view.unchanged(keys.switch), view.unchanged(keys.rollout(switch.rollout)))
            return Repair(compares, (Delete(keys.switch),), ended)
    fleet = view.fleet
    if view.is_unreadable(keys.reconciled) and fleet is not None and desired:
        # As if it had been reconciled: versions that were rolled out by hand stand.
        record = ReconciledRecord(fleet.generation, dict(desired))
        followed = EventRecord(
            now, LEADER, "fleet taken as followed", f"generation {fleet.generation}", "apply it again if it was not"
        )
        compares = (view.unchanged(keys.reconciled), view.unchanged(keys.fleet))
        return Repair(compares, (Put(keys.reconciled, encode(record)),), followed)
    return None
