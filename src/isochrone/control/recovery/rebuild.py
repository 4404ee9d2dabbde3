"""Rebuilds the epoch when neither its record nor its copy can be read, or both were put back. Pure.

It starts from the newest epoch that a gateway serves, or from the one that was put back if that is newer, and adds
every rollout that was committed since. If there is neither, it uses the rollouts alone. The number is higher than any
that was reported, so that every gateway accepts it. Only a user may request it: it undoes a commit that no gateway saw
and no rollout recorded (a model that a file removed, another amount of memory). It is rejected while a registered
gateway serves an epoch newer than all that were offered: its models would be missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from isochrone.control.desired.reconcile import REMOVED
from isochrone.control.requests.decisions import Conflict, Decision, RequestContext, one_of
from isochrone.control.rollout.switching import with_changes
from isochrone.control.state.codec import encode
from isochrone.control.state.events import event
from isochrone.control.state.records import EpochRecord, EventRecord
from isochrone.control.state.rollout_records import DONE, DRAINING, RolloutRecord
from isochrone.control.state.view import View
from isochrone.store.base import Delete, Put


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A rebuilt epoch and a description of its sources."""

    epoch: EpochRecord
    source: str
    #: What may be missing from it.
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Of the restored epoch, without the requester and the time."""
        epoch = msgspec.structs.replace(self.epoch, by="", at=0.0)
        return hashlib.sha256(msgspec.json.encode(epoch, order="deterministic")).hexdigest()


def restore_epoch(
    view: View, context: RequestContext, digest: str = "", without: Sequence[str] = ()
) -> Decision[Rebuilt]:
    """Write the rebuilt epoch. ``digest``: of the preview that the caller saw. ``without``: gateways whose offers are
    not needed."""
    keys = view.keys
    if not view.is_unreadable(keys.epoch):
        current = view.epoch
        shown = f"epoch {current.epoch}" if current is not None else "nothing is committed yet"
        raise Conflict(f"the epoch record can be read ({shown}); there is nothing to restore")
    if not view.is_epoch_lost:
        raise Conflict("the copy of the epoch can be read; the leading controller restores the epoch from it by itself")
    for name in without:
        one_of(name, sorted(view.gateways), "gateway")
    _complete(view, without)
    rebuilt = rebuild(view, context)
    found = {name: model.version for name, model in rebuilt.epoch.models.items()}
    if digest and digest != rebuilt.digest:
        raise Conflict("the sources of the epoch have changed since the preview; request another preview")
    value = encode(rebuilt.epoch)
    detail = f"from {rebuilt.source}: {', '.join(f'{name} {version}' for name, version in sorted(found.items()))}"
    record = EventRecord(context.at, context.who, "epoch restored", f"epoch {rebuilt.epoch.epoch}", detail)
    operations: list[Put | Delete] = [Put(keys.epoch, value), Put(keys.epoch_copy, value)]
    if keys.switch in view.entries:
        # It was announced for the lost epoch: its rollout starts another switch.
        operations.append(Delete(keys.switch))
    compares = tuple(view.unchanged(key) for key in (keys.epoch, keys.epoch_copy, keys.switch, keys.rollout_number))
    return Decision(rebuilt, compares, (*operations, event(keys, record, context.unique)))


def _complete(view: View, without: Sequence[str]) -> None:
    """Raise ``Conflict`` while a gateway serves a newer epoch than any that was offered."""
    newest = max((each.epoch for each in view.served_epochs.values()), default=0)
    missing = [name for name, gateway in view.gateways.items() if name not in without and gateway.epoch > newest]
    if missing:
        names = ", ".join(missing)
        flags = " ".join(f"--without {name}" for name in missing)
        raise Conflict(
            f"gateway {names} has not yet offered the epoch that it serves; try again in a moment. If that lasts, stop "
            f"the gateway, or ignore what it serves with {flags}"
        )


def rebuild(view: View, context: RequestContext) -> Rebuilt:
    """Raise ``Conflict`` if there is nothing to rebuild it from."""
    offers = view.served_epochs
    rollouts = view.rollouts
    base, source = EpochRecord(0), ""
    if offers:
        gateway = max(offers, key=lambda name: offers[name].epoch)
        base, source = offers[gateway], f"epoch {offers[gateway].epoch} of gateway {gateway}"
    older = view.newest_put_back
    if older is not None and older.epoch > base.epoch:
        base, source = older, f"epoch {older.epoch}, which was put back"
    later = sorted((each for each in rollouts if _is_later(each, base)), key=lambda each: each.epoch)
    models = base.models
    for rollout in later:
        models = with_changes(models, rollout.changes, rollout.epoch)
    if base not in offers.values():
        removed = _removed(view, later)
        models = {name: model for name, model in models.items() if name not in removed}
    if later:
        since = f"rollout {', '.join(each.identity for each in later[-5:])}"
        source = f"{source} and {since}" if source else since
    if not models:
        raise Conflict(
            "no gateway has served an epoch and no rollout was committed, so the served versions are unknown; "
            "restore the store from a backup"
        )
    seen = _epochs_seen(view)
    known = max([base.epoch, *(each.epoch for each in rollouts)])
    switched = view.switch.epoch if view.switch is not None else 0
    number = max([known, switched, view.newest_epoch.number, *seen.values()]) + 1
    notes = [
        f"gateway {name} has served epoch {epoch}, and the known records end with epoch {known}"
        for name, epoch in sorted(seen.items())
        if epoch > known
    ]
    fleet = view.fleet
    missing = sorted((fleet.spec.get("models") or {}).keys() - models.keys()) if fleet is not None else []
    if missing:
        notes.append(f"not known to be served: {', '.join(missing)}; apply the file again to roll them out")
    return Rebuilt(EpochRecord(number, dict(models), "", context.who, context.at), source, tuple(notes))


def _is_later(rollout: RolloutRecord, base: EpochRecord) -> bool:
    """Whether it was committed after an epoch. A rollout that is in canary or rolls back commits again by itself."""
    return rollout.state in (DRAINING, DONE) and rollout.epoch > base.epoch


def _removed(view: View, rollouts: list[RolloutRecord]) -> set[str]:
    """Models that a file removed after their last rollout was committed."""
    brought = {name: each.since.get(DRAINING, each.at) for each in rollouts for name in each.changes}
    return {
        past.about
        for _, past in view.events()
        if past.what == REMOVED and past.about in brought and past.at > brought[past.about]
    }


def _epochs_seen(view: View) -> dict[str, int]:
    """By gateway: the newest epoch that it has reported."""
    found = {name: record.epoch for name, record in view.gateways.items()}
    for name, (_, epoch) in view.epochs_seen.items():
        found[name] = max(found.get(name, 0), epoch)
    return found
