"""The cutover of a rollout to its new versions. Pure.

``fast``: one write, and each gateway switches when it sees it. ``strict``: every gateway that may be serving first
acknowledges the announcement (requests do not wait yet), then holds new requests and acknowledges that; the commit is
one transaction that fails if any gateway joined or left since. So a request that starts after any client got the new
version cannot get the old one, independent of all clocks. A gateway that does not answer delays the switch, not the
requests: requests wait only after all gateways have acknowledged the announcement.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from isochrone.control.rollout.decision import Decision, enter
from isochrone.control.rollout.observed_state import XDS_SUFFIX, ObservedState
from isochrone.control.state.records import Assignment, EpochRecord
from isochrone.control.state.rollout_records import (
    ABORTING,
    ANNOUNCED,
    CANCELLED,
    DRAINING,
    HOLDING,
    STRICT,
    Change,
    RolloutRecord,
    SwitchRecord,
)

#: Seconds for every gateway to acknowledge: the announcement, and the hold.
ANNOUNCE_SECONDS = 3.0
HOLD_SECONDS = 1.0
#: Switches that are attempted before the rollout is aborted, and seconds between them.
ATTEMPTS = 10
PAUSE_SECONDS = 0.5


def switch(record: RolloutRecord, observed: ObservedState) -> Decision:
    """The next step of a rollout that is prepared."""
    is_running = observed.switch is not None and observed.switch.rollout == record.identity
    late = _lagging(record, observed, is_running=is_running)
    if late:
        if is_running:
            # The gateway joined while requests wait: they must not wait for its discovery.
            return _again(record, observed, f"gateway {', '.join(late)} has not seen the last epoch")
        return _wait_for_gateways(record, observed, late)
    if record.cutover != STRICT or not _changes_anything(record, observed):
        if observed.switch is not None:
            # It belongs to another rollout: commits wait for each other.
            return Decision(record)
        return committed(record, observed)
    return _strict(record, observed)


def _lagging(record: RolloutRecord, observed: ObservedState, *, is_running: bool) -> list[str]:
    """Gateways that have not seen the last change of a model that now loses its previous version: they may still serve
    that version.

    Clients of xDS do not take part in a switch. Those that connect while it is running must not end it.
    """
    losing = [
        before
        for name, change in record.changes.items()
        if (before := observed.epoch.models.get(name)) is not None and before.previous not in ("", change.version)
    ]
    if not losing:
        return []
    epoch = max(before.epoch for before in losing)
    return observed.lagging_gateways(epoch) if is_running else observed.lagging(epoch)


def _changes_anything(record: RolloutRecord, observed: ObservedState) -> bool:
    """Whether a client can have seen an earlier version."""
    return any(name in observed.epoch.models for name in record.changes)


def _wait_for_gateways(record: RolloutRecord, observed: ObservedState, late: list[str]) -> Decision:
    names = ", ".join(late)
    since = record.since.get(record.state, observed.now)
    if observed.now - since > record.prepare_seconds:
        reason = f"gateway {names} still serves an earlier epoch; {_advice(late[0])}"
        return Decision(enter(record, ABORTING, observed.now, reason=reason), event="aborted")
    return Decision(
        msgspec.structs.replace(record, note=f"waits for gateway {names} to see epoch {observed.epoch.epoch}")
    )


def _advice(late: str) -> str:
    if late.endswith(XDS_SUFFIX):
        # Gateways come first: only clients of xDS are late. No command forgets those.
        return "its clients have a few seconds after each commit; start the rollout again"
    return f"if it is dead for good, run 'isochrone forget {late}'"


def _strict(record: RolloutRecord, observed: ObservedState) -> Decision:
    current = observed.switch
    if current is None:
        return _announce(record, observed)
    if current.rollout != record.identity:
        return Decision(msgspec.structs.replace(record, note="waits for another switch"))
    if current.phase == CANCELLED:
        return _again(record, observed, current.reason)
    if current.epoch != observed.epoch.epoch:
        return _again(record, observed, "the epoch changed meanwhile")
    missing = [name for name in observed.known_gateways if not _acknowledged(name, current.phase, observed)]
    held = observed.now - observed.switch_since
    if missing:
        limit = HOLD_SECONDS if current.phase == HOLDING else ANNOUNCE_SECONDS
        if held > limit:
            return _again(record, observed, f"gateway {', '.join(sorted(missing))} did not answer within {limit:g} s")
        return Decision(record)
    if current.phase == ANNOUNCED:
        return Decision(record, switch=msgspec.structs.replace(current, phase=HOLDING))
    return committed(record, observed, ends_switch=True)


def _acknowledged(gateway: str, phase: str, observed: ObservedState) -> bool:
    acknowledgement = observed.acknowledgements.get(gateway)
    return (
        acknowledgement is not None
        and acknowledgement.phase == phase
        and acknowledgement.incarnation == observed.known_gateways[gateway]
    )


def affected(record: RolloutRecord, epoch: EpochRecord) -> set[str]:
    """Models whose answers change: those of the rollout, and ensembles that run them."""
    found = set(record.changes)
    grown = True
    while grown:
        more = {name for name, model in epoch.models.items() if name not in found and found & set(model.stages)}
        grown = bool(more)
        found |= more
    return found


def _announce(record: RolloutRecord, observed: ObservedState) -> Decision:
    if observed.now < record.since.get("switch", 0.0) + PAUSE_SECONDS:
        return Decision(record)
    attempts = record.attempts + 1
    identity = f"{record.identity}.{attempts}"
    models = tuple(sorted(affected(record, observed.epoch)))
    tried = msgspec.structs.replace(record, attempts=attempts)
    return Decision(tried, switch=SwitchRecord(identity, ANNOUNCED, models, observed.epoch.epoch))


def _again(record: RolloutRecord, observed: ObservedState, reason: str) -> Decision:
    """End this switch without a commit: all gateways continue with the committed epoch."""
    if record.attempts >= ATTEMPTS:
        text = f"the strict switch failed {record.attempts} times; the last time {reason}"
        return Decision(enter(record, ABORTING, observed.now, reason=text), ends_switch=True, event="aborted")
    note = f"switch {record.attempts} of at most {ATTEMPTS} failed: {reason}"
    since = {**record.since, "switch": observed.now}
    return Decision(msgspec.structs.replace(record, note=note, since=since), ends_switch=True)


def committed(record: RolloutRecord, observed: ObservedState, *, ends_switch: bool = False) -> Decision:
    """The decision that commits the new epoch."""
    number = observed.next_epoch
    models = with_changes(observed.epoch.models, record.changes, number)
    epoch = EpochRecord(number, models, record.identity, record.by, observed.now)
    after = enter(record, DRAINING, observed.now, epoch=number, note="")
    return Decision(after, commit=epoch, ends_switch=ends_switch, event=f"committed epoch {number}")


def with_changes(served: Mapping[str, Assignment], changes: Mapping[str, Change], number: int) -> dict[str, Assignment]:
    """The assignments of all models once the changes are committed in the epoch of that number."""
    models = dict(served)
    for name, change in changes.items():
        before = models.get(name)
        if before is None:
            previous = ("", "", 0)
        elif before.version == change.version:
            # The same version on other pools keeps its previous version.
            previous = (before.previous, before.previous_digest, before.previous_memory)
        else:
            previous = (before.version, before.digest, before.memory)
        models[name] = Assignment(
            version=change.version,
            digest=change.digest,
            previous=previous[0],
            previous_digest=previous[1],
            previous_memory=previous[2],
            stages=change.stages,
            pools=change.pools,
            memory=change.memory,
            epoch=number,
        )
    return models
