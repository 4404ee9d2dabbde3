"""What people ask of a fleet, decided: the records and a request in, a transaction or a refusal out.

Stands between the API and the store. No clock, no I/O: the API brings the time, writes the transaction, and asks again
when a record changed in between. Starting a rollout and going back are in ``rollout_requests``. Nothing here acts on
the fleet: the leading controller and the supervisor do, on what is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from isochrone.control.fleet.file import FleetFile
from isochrone.control.fleet.planning.keeping import kept_pools, needed_pools
from isochrone.control.fleet.planning.losses import losses_of_scaling
from isochrone.control.fleet.planning.plan import Step, is_refused, plan, takes_away
from isochrone.control.fleet.planning.steps import IGNORE, REFUSE
from isochrone.control.fleet.reading import fleet_of, with_workers
from isochrone.control.fleet.spec import Fleet
from isochrone.control.state.events import event
from isochrone.control.state.keys import PREFIX
from isochrone.control.state.records import (
    ABORTING,
    CANARY,
    DONE,
    DRAINING,
    ConvergedRecord,
    EventRecord,
    FleetRecord,
    KeptPool,
    RolloutRecord,
    encode,
)
from isochrone.control.state.view import View
from isochrone.errors import GRPC_ALREADY_EXISTS, InvalidArgument, IsochroneError, NotFound
from isochrone.store.base import Compare, Delete, Put
from isochrone.suggestions import suggestion

Answer = TypeVar("Answer")

#: Workers of a pool that states no limit.
_MOST_WORKERS = 4096
#: Steps of a plan that its event names.
_STEPS_TOLD = 5


class Conflict(IsochroneError):
    """What is asked does not fit what is under way; the message says what is, and what to do."""

    code = "conflict"
    http_status = 409
    grpc_status = GRPC_ALREADY_EXISTS


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks, when (seconds since 1970), and a word that no other request has."""

    who: str
    at: float
    unique: str


@dataclass(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """A transaction, and what is answered once it is written. No operations: it is so already."""

    answer: Answer
    compares: tuple[Compare, ...] = ()
    operations: tuple[Put | Delete, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """A fleet.yaml that was applied, or would be: what it replaces, and what follows."""

    record: FleetRecord
    steps: tuple[Step, ...]


class NotAgreed(Conflict):
    """A file would take something away that is served, and nobody has agreed to that."""

    code = "not_agreed"


def apply_fleet(
    view: View,
    file: FleetFile,
    asking: Asking,
    generation: int | None = None,
    agreed: Collection[str] | bool = False,
    lost: Sequence[str] = (),
) -> Decision[Applied]:
    """The fleet is to be as the file says.

    ``generation``: of the fleet that the caller saw a plan against. ``agreed``: what may be taken away, as the plan
    names it ("model detector", "pool cpu"); True: whatever the plan says. ``lost``: why the new repositories cannot
    serve what is served.
    """
    name = view.keys.prefix.removeprefix(PREFIX).rstrip("/")
    if file.fleet.name != name:
        raise InvalidArgument(f"name: expected '{name}', the fleet of this controller, given '{file.fleet.name}'")
    before = view.fleet
    current = view.generation
    if generation is not None and generation != current:
        by = f" (by {before.by})" if before is not None and before.by else ""
        raise Conflict(f"the fleet is at generation {current}{by}, not {generation}; look at the plan again")
    fleet_before = fleet_of(before.spec) if before is not None else None
    unchanged = before is not None and (before.text, before.directory) == (file.text, file.directory)
    still_kept = _still_kept(view)
    steps = plan(
        fleet_before,
        file.fleet,
        directory=Path(file.directory),
        directory_before=Path(before.directory) if before is not None else None,
        served=_standing(view, file.versions),
        resolved=file.versions,
        stages=file.stages,
        committed=view.assignments,
        kept=still_kept,
        agreed_before=_under_way(view, still_kept, unchanged),
    )
    steps += _held_by_hand(view, file.versions)
    _possible(steps)
    if lost:
        raise Conflict("; ".join(lost))
    _agreed(steps, agreed)
    spec = file.fleet.model_dump(mode="json")
    kept = kept_pools(before, fleet_before, file.fleet, view.epoch, view.open_rollouts)
    if before is not None and unchanged and all(step.action == IGNORE for step in steps):
        return Decision(Applied(before, tuple(steps)))
    record = FleetRecord(current + 1, file.text, spec, file.directory, asking.who, asking.at, kept)
    said = "; ".join(map(str, steps[:_STEPS_TOLD])) + ("; …" if len(steps) > _STEPS_TOLD else "")
    return _fleet_written(view, Applied(record, tuple(steps)), "fleet applied", said or "nothing changes", asking)


def _still_kept(view: View) -> dict[str, KeptPool]:
    """Pools that the applied file has dropped, and that still serve."""
    record = view.fleet
    if record is None or not record.kept:
        return {}
    needed = needed_pools(record, fleet_of(record.spec), view.epoch, view.converged, view.open_rollouts)
    return {pool: kept for pool, kept in record.kept.items() if pool in needed}


def _under_way(view: View, kept: Collection[str], unchanged: bool) -> frozenset[str]:
    """What the applied file takes away as soon as it is carried out: that was agreed to, and is not asked again.

    As ``takes_away`` names it. ``unchanged``: the very file that was agreed to is applied again. A model may also go
    because its repository holds it no longer, so the same text does not count for models.
    """
    record, converged = view.fleet, view.converged
    if record is None:
        return frozenset()
    is_followed = converged.generation >= record.generation
    moving = {
        pool
        for rollout in view.open_rollouts
        if rollout.state != ABORTING and not rollout.abort_asked
        for change in rollout.changes.values()
        for pool in change.left
    }
    pools = {pool for pool in kept if unchanged or not is_followed or pool in moving}
    models = converged.retiring if is_followed else ()
    return frozenset((*(f"pool {pool}" for pool in pools), *(f"model {model}" for model in models)))


def _possible(steps: Sequence[Step]) -> None:
    if is_refused(steps):
        raise Conflict("; ".join(f"{step.name}: {step.detail}" for step in steps))


def _agreed(steps: Sequence[Step], agreed: Collection[str] | bool) -> None:
    missing = [each for each in takes_away(steps) if agreed is False or (agreed is not True and each not in agreed)]
    if missing:
        raise NotAgreed(
            f'nothing was applied: it takes away {", ".join(missing)}; agree to that with --yes, or with "retire" in a '
            f"request to the API; the plan: {'; '.join(map(str, steps))}"
        )


def scale(view: View, pool: str, workers: int, asking: Asking, agreed: bool = False) -> Decision[Applied]:
    """A pool gets so many workers, until a fleet.yaml is applied again; none that work only if that was agreed to."""
    record, fleet = applied_fleet(view)
    one_of(pool, sorted(fleet.pools), "pool")
    settings = fleet.pools[pool]
    if settings.addresses:
        raise Conflict(f"pool {pool} is of servers that run already (addresses in fleet.yaml): none can be started")
    most = settings.max if settings.max is not None else _MOST_WORKERS
    if not settings.min <= workers <= most:
        raise InvalidArgument(f"workers: expected {settings.min} to {most}, the pool's limits, given {workers}")
    if workers == settings.workers:
        return Decision(Applied(record, ()))
    scaled = with_workers(fleet, pool, workers)
    planned = plan(fleet, scaled, directory=Path(record.directory), committed=view.assignments, kept=_still_kept(view))
    # Whatever else the plan names comes of the file, or of what is under way: not of this.
    steps = [step for step in planned if step.action == REFUSE or (step.kind, step.name) == ("pool", pool)]
    steps += losses_of_scaling(fleet, pool, workers, set(view.workers), view.drains)
    _possible(steps)
    _agreed(steps, agreed)
    spec = scaled.model_dump(mode="json")
    changed = FleetRecord(
        record.generation + 1, record.text, spec, record.directory, asking.who, asking.at, record.kept
    )
    said = f"{pool} from {settings.workers} to {workers} workers"
    decision = _fleet_written(view, Applied(changed, tuple(steps)), "scaled", said, asking)
    converged = view.read(view.keys.converged, ConvergedRecord)
    if converged is None or converged.generation != record.generation:
        return decision
    # Nothing of the models is asked for anew: what ``latest`` means by now is for the next apply.
    followed = Put(view.keys.converged, encode(msgspec.structs.replace(converged, generation=changed.generation)))
    unchanged = view.unchanged(view.keys.converged)
    return Decision(decision.answer, (*decision.compares, unchanged), (*decision.operations, followed))


def applied_fleet(view: View) -> tuple[FleetRecord, Fleet]:
    record = view.fleet
    if record is None:
        raise Conflict("no fleet.yaml has been applied yet; do it with 'isochrone apply FILE'")
    return record, fleet_of(record.spec)


def abort(view: View, identity: str, reason: str, asking: Asking) -> Decision[RolloutRecord]:
    """Nothing of the new version stays visible."""
    record = find_rollout(view, identity)
    if record.is_over:
        way = "; go back with 'isochrone rollout rollback MODEL'" if record.state == DONE else ""
        raise Conflict(f"rollout {identity} is {record.state} already{way}")
    if record.state == DRAINING:
        models = ", ".join(record.changes)
        raise Conflict(f"rollout {identity} is committed; go back with 'isochrone rollout rollback' of {models}")
    if record.state == ABORTING or record.abort_asked:
        return Decision(record)
    said = reason.strip()
    changed = msgspec.structs.replace(record, abort_asked=f"{said} (by {asking.who})" if said else f"by {asking.who}")
    return _rewritten(view, changed, "rollout abort asked", said, asking)


def promote(view: View, identity: str, asking: Asking) -> Decision[RolloutRecord]:
    """The canary goes on to all traffic now, whatever its figures."""
    record = find_rollout(view, identity)
    if record.abort_asked or record.state == ABORTING:
        raise Conflict(f"rollout {identity} is being aborted: {record.abort_asked or record.reason}")
    if record.state != CANARY:
        raise Conflict(f"rollout {identity} is {record.state}; only one in canary can be promoted")
    if record.promote_asked:
        return Decision(record)
    changed = msgspec.structs.replace(record, promote_asked=True)
    return _rewritten(view, changed, "canary promoted", f"at step {record.step + 1}", asking)


def drain(view: View, name: str, asking: Asking) -> Decision[str]:
    """A worker or gateway gets no new work."""
    _known_process(view, name)
    key = view.keys.drain(name)
    if key in view.entries:
        return Decision(f"{name} is draining")
    record = EventRecord(asking.at, asking.who, "drain", name)
    operations = (Put(key, encode(record)), event(view.keys, record, asking.unique))
    return Decision(f"{name} is draining", (view.unchanged(key),), operations)


def undrain(view: View, name: str, asking: Asking) -> Decision[str]:
    key = view.keys.drain(name)
    if key not in view.entries:
        drained = ", ".join(view.drains) or "nothing"
        raise NotFound(f"{name} is not draining; draining: {drained}")
    record = EventRecord(asking.at, asking.who, "undrain", name)
    operations = (Delete(key), event(view.keys, record, asking.unique))
    return Decision(f"{name} takes work again", (view.unchanged(key),), operations)


def forget_gateway(view: View, name: str, asking: Asking) -> Decision[str]:
    """A gateway that is dead for sure: strict switches no longer wait for its word."""
    known = view.known_gateways
    if name not in known:
        raise NotFound(f"gateway '{name}': expected {suggestion(name, known, 'gateway') if known else 'none'}")
    registered = view.keys.gateway(name)
    if registered in view.entries:
        raise Conflict(f"gateway {name} is registered, so it is alive; stop it, and it leaves by itself")
    key, set_key = view.keys.known_gateway(name), view.keys.gateway_set
    record = EventRecord(asking.at, asking.who, "gateway forgotten", name)
    # Writing the set makes a switch that counted this gateway count again.
    operations = (Delete(key), Put(set_key, name.encode()), event(view.keys, record, asking.unique))
    compares = (view.unchanged(key), view.unchanged(registered), view.unchanged(set_key))
    return Decision(f"gateway {name} is forgotten", compares, operations)


def find_rollout(view: View, identity: str) -> RolloutRecord:
    record = view.rollout(identity)
    if record is None:
        latest = ", ".join(each.identity for each in view.rollouts[-5:]) or "none"
        raise NotFound(f"rollout '{identity}': expected one that exists; the latest: {latest}")
    return record


def one_of(name: str, known: Sequence[str], kind: str) -> None:
    """Raises when a name is none of the known, with the nearest."""
    if name not in known:
        expected = suggestion(name, list(known), kind) if known else f"a {kind}, but the fleet has none"
        raise NotFound(f"{kind} '{name}': expected {expected}")


def _known_process(view: View, name: str) -> None:
    one_of(name, sorted({*view.workers, *view.gateways, *view.known_gateways}), "worker or gateway")


def _standing(view: View, versions: Mapping[str, str]) -> dict[str, str]:
    """By model: the version that is served, unless the file asks for the same as before.

    One that was rolled out or back by hand stands then (``following``), so the plan must not tell of a rollout.
    """
    converged = view.read(view.keys.converged, ConvergedRecord) or ConvergedRecord(0)
    asked = {name: version for name, version in versions.items() if converged.versions.get(name) == version}
    return {name: asked.get(name, served.version) for name, served in view.assignments.items()}


def _held_by_hand(view: View, versions: Mapping[str, str]) -> list[Step]:
    """Models whose version in the file has no effect: another one was rolled out or back since the file asked."""
    standing, steps = _standing(view, versions), []
    changing = {name for rollout in view.open_rollouts for name in rollout.changes}
    for name, served in view.assignments.items():
        wanted = versions.get(name)
        if wanted is None or wanted == served.version or standing[name] != wanted or name in changing:
            continue
        last = next((each for each in reversed(view.rollouts) if each.state == DONE and name in each.changes), None)
        since = f" since {'rollback' if last.kind == 'rollback' else 'rollout'} {last.identity}" if last else ""
        way = f"isochrone rollout start {name}={wanted}"
        detail = f"the file says {wanted}; {served.version} is served{since}; to change it: {way}"
        steps.append(Step(IGNORE, "model", name, detail))
    return steps


def _fleet_written(view: View, applied: Applied, what: str, detail: str, asking: Asking) -> Decision[Applied]:
    key, record = view.keys.fleet, applied.record
    about = f"generation {record.generation}"
    told = event(view.keys, EventRecord(asking.at, asking.who, what, about, detail), asking.unique)
    return Decision(applied, (view.unchanged(key),), (Put(key, encode(record)), told))


def _rewritten(view: View, record: RolloutRecord, what: str, detail: str, asking: Asking) -> Decision[RolloutRecord]:
    key = view.keys.rollout(record.identity)
    told = event(view.keys, EventRecord(asking.at, asking.who, what, record.identity, detail), asking.unique)
    return Decision(record, (view.unchanged(key),), (Put(key, encode(record)), told))
