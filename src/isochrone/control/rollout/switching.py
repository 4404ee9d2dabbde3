"""The cutover: all at once. Pure.

``fast``: one write, and each gateway switches when it sees it. ``strict``: every gateway that may be serving first says
that it is there (announced; nothing waits yet), then stops admitting and says so (holding); the commit is one
transaction that fails if any gateway came or went since. So a request that starts after anybody got the new version
cannot get the old one, whatever any clock says. A gateway that does not answer holds up the switch, not the requests:
it is announced, and only when all have answered does anybody wait.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from isochrone.control.rollout.decision import Decision, enter
from isochrone.control.rollout.observed_state import World
from isochrone.control.state.records import (
    ABORTING,
    ANNOUNCED,
    CANCELLED,
    DRAINING,
    HOLDING,
    STRICT,
    Assignment,
    Change,
    EpochRecord,
    RolloutRecord,
    SwitchRecord,
)

#: Seconds for every gateway to answer: to the announcement, and while requests wait.
ANNOUNCE_SECONDS = 3.0
HOLD_SECONDS = 1.0
#: Switches that are tried before the rollout is given up, and seconds between them.
ATTEMPTS = 10
PAUSE_SECONDS = 0.5


def switch(record: RolloutRecord, world: World) -> Decision:
    """The next step of a rollout that is prepared."""
    late = _lagging(record, world)
    if late:
        if world.switch is not None and world.switch.rollout == record.identity:
            # It came while requests wait: they must not wait for that.
            return _again(record, world, f"gateway {', '.join(late)} has yet to see the last epoch")
        return _wait_for_gateways(record, world, late)
    if record.cutover != STRICT or not _changes_anything(record, world):
        if world.switch is not None:
            # Another rollout's: commits wait for each other.
            return Decision(record)
        return committed(record, world)
    return _strict(record, world)


def _lagging(record: RolloutRecord, world: World) -> list[str]:
    """Gateways that have not seen the last change of a model that now loses its previous version: they may serve it."""
    losing = [
        before
        for name, change in record.changes.items()
        if (before := world.epoch.models.get(name)) is not None and before.previous not in ("", change.version)
    ]
    return world.lagging(max(before.epoch for before in losing)) if losing else []


def _changes_anything(record: RolloutRecord, world: World) -> bool:
    """Whether anybody can have seen an earlier version."""
    return any(name in world.epoch.models for name in record.changes)


def _wait_for_gateways(record: RolloutRecord, world: World, late: list[str]) -> Decision:
    names = ", ".join(late)
    since = record.since.get(record.state, world.now)
    if world.now - since > record.prepare_seconds:
        reason = (
            f"gateway {names} still serves an earlier epoch; if it is dead for good, say so with "
            f"'isochrone forget {late[0]}'"
        )
        return Decision(enter(record, ABORTING, world.now, reason=reason), event="aborted")
    return Decision(msgspec.structs.replace(record, note=f"waits for gateway {names} to see epoch {world.epoch.epoch}"))


def _strict(record: RolloutRecord, world: World) -> Decision:
    current = world.switch
    if current is None:
        return _announce(record, world)
    if current.rollout != record.identity:
        return Decision(msgspec.structs.replace(record, note="waits for another switch"))
    if current.phase == CANCELLED:
        return _again(record, world, current.reason)
    if current.epoch != world.epoch.epoch:
        return _again(record, world, "the epoch changed meanwhile")
    missing = [name for name in world.known_gateways if not _acknowledged(name, current.phase, world)]
    held = world.now - world.switch_since
    if missing:
        limit = HOLD_SECONDS if current.phase == HOLDING else ANNOUNCE_SECONDS
        if held > limit:
            return _again(record, world, f"gateway {', '.join(sorted(missing))} did not answer within {limit:g} s")
        return Decision(record)
    if current.phase == ANNOUNCED:
        return Decision(record, switch=msgspec.structs.replace(current, phase=HOLDING))
    return committed(record, world, ends_switch=True)


def _acknowledged(gateway: str, phase: str, world: World) -> bool:
    word = world.acknowledgements.get(gateway)
    return word is not None and word.phase == phase and word.incarnation == world.known_gateways[gateway]


def affected(record: RolloutRecord, epoch: EpochRecord) -> set[str]:
    """Models whose answers change: those that do themselves, and ensembles that run them."""
    found = set(record.changes)
    grown = True
    while grown:
        more = {name for name, model in epoch.models.items() if name not in found and found & set(model.stages)}
        grown = bool(more)
        found |= more
    return found


def _announce(record: RolloutRecord, world: World) -> Decision:
    if world.now < record.since.get("switch", 0.0) + PAUSE_SECONDS:
        return Decision(record)
    attempts = record.attempts + 1
    identity = f"{record.identity}.{attempts}"
    models = tuple(sorted(affected(record, world.epoch)))
    tried = msgspec.structs.replace(record, attempts=attempts)
    return Decision(tried, switch=SwitchRecord(identity, ANNOUNCED, models, world.epoch.epoch))


def _again(record: RolloutRecord, world: World, reason: str) -> Decision:
    """This switch is over without a commit: everybody goes on by what is committed."""
    if record.attempts >= ATTEMPTS:
        text = f"the strict switch failed {record.attempts} times; the last time {reason}"
        return Decision(enter(record, ABORTING, world.now, reason=text), ends_switch=True, event="aborted")
    note = f"switch {record.attempts} of at most {ATTEMPTS} failed: {reason}"
    since = {**record.since, "switch": world.now}
    return Decision(msgspec.structs.replace(record, note=note, since=since), ends_switch=True)


def committed(record: RolloutRecord, world: World, *, ends_switch: bool = False) -> Decision:
    """The new epoch, and the rollout as it is with it."""
    number = world.epoch.epoch + 1
    models = with_changes(world.epoch.models, record.changes, number)
    epoch = EpochRecord(number, models, record.identity, record.by, world.now)
    after = enter(record, DRAINING, world.now, epoch=number, note="")
    return Decision(after, commit=epoch, ends_switch=ends_switch, event=f"committed epoch {number}")


def with_changes(served: Mapping[str, Assignment], changes: Mapping[str, Change], number: int) -> dict[str, Assignment]:
    """All models as they are once the changes are committed in the epoch of that number."""
    models = dict(served)
    for name, change in changes.items():
        before = models.get(name)
        if before is None:
            previous = ("", "")
        elif before.version == change.version:
            # The same version on other pools keeps its way back.
            previous = (before.previous, before.previous_digest)
        else:
            previous = (before.version, before.digest)
        models[name] = Assignment(
            version=change.version,
            digest=change.digest,
            previous=previous[0],
            previous_digest=previous[1],
            stages=change.stages,
            pools=change.pools,
            memory=change.memory,
            epoch=number,
        )
    return models
