"""Requests about the fleet as a whole: applying a fleet.yaml, and scaling a pool. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from isochrone.control.fleet.planning.keeping import kept_pools, needed_pools
from isochrone.control.fleet.planning.losses import losses_of_scaling
from isochrone.control.fleet.planning.plan import plan
from isochrone.control.fleet.planning.steps import IGNORE, REFUSE, WARN, Step, is_refused, takes_away
from isochrone.control.fleet.reading.file import FleetFile
from isochrone.control.fleet.reading.parsing import fleet_of, with_workers
from isochrone.control.fleet.reading.present_fleet import at_present, present_fleet
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.requests.decisions import Conflict, Decision, RequestContext, applied_fleet, one_of
from isochrone.control.state.codec import encode
from isochrone.control.state.events import event
from isochrone.control.state.records import KUBERNETES, LOCAL, EventRecord, FleetRecord, KeptPool, ReconciledRecord
from isochrone.control.state.rollout_records import ABORTING, DONE
from isochrone.control.state.view import View
from isochrone.errors import InvalidArgument
from isochrone.store.base import Put

#: Workers of a pool without a limit.
_MOST_WORKERS = 4096
#: Steps of a plan that its event names.
_STEPS_NAMED = 5
_NO_CAUTIONS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Applied:
    """A fleet.yaml that was applied, or would be, and the steps that follow."""

    record: FleetRecord
    steps: tuple[Step, ...]


class NotAgreed(Conflict):
    """A file would take away something that is served, and the user has not agreed to it."""

    code = "not_agreed"


def apply_fleet(
    view: View,
    file: FleetFile,
    context: RequestContext,
    generation: int | None = None,
    agreed: Collection[str] | bool = False,
    lost: Sequence[str] = (),
    engine: str | None = None,
    cautions: Mapping[str, str] = _NO_CAUTIONS,
) -> Decision[Applied]:
    """Apply a fleet.yaml.

    ``generation``: of the fleet that the caller's plan was made for. ``agreed``: what may be taken away, as the plan
    names it ("model detector", "pool cpu"); True: everything in the plan. ``lost``: why the new repositories cannot
    serve the committed versions. ``engine``: the one that runs the processes from now on; None: as before.
    ``cautions``: by key of the file, what the plan warns of.
    """
    name = view.keys.fleet_name
    if file.fleet.name != name:
        raise InvalidArgument(f"name: expected '{name}', the fleet of this controller, given '{file.fleet.name}'")
    before = view.fleet
    current = view.generation
    if generation is not None and generation != current:
        by = f" (by {before.by})" if before is not None and before.by else ""
        raise Conflict(f"the fleet is at generation {current}{by}, not {generation}; look at the plan again")
    fleet_before = present_fleet(before, view) if before is not None else None
    engine = engine or (before.engine if before is not None else LOCAL)
    applied = (file.text, file.directory, engine)
    unchanged = before is not None and (before.text, before.directory, before.engine) == applied
    still_kept = _still_kept(view)
    steps = plan(
        fleet_before,
        at_present(file.fleet, engine, view),
        directory=Path(file.directory),
        directory_before=Path(before.directory) if before is not None else None,
        served=_standing(view, file.versions),
        resolved=file.versions,
        stages=file.stages,
        committed=view.assignments,
        kept=still_kept,
        agreed_before=_under_way(view, still_kept, unchanged),
        engine=engine,
        placements=view.placements,
    )
    steps += _held_by_hand(view, file.versions)
    steps += [Step(WARN, "fleet", key, text) for key, text in cautions.items()]
    _check_possible(steps)
    if lost:
        raise Conflict("; ".join(lost))
    _check_key(view, fleet_before, file.fleet, engine)
    _check_agreed(steps, agreed)
    spec = file.fleet.model_dump(mode="json")
    kept = kept_pools(before, fleet_before, file.fleet, view.epoch, view.open_rollouts)
    if before is not None and unchanged and all(step.action in (IGNORE, WARN) for step in steps):
        return Decision(Applied(before, tuple(steps)))
    record = FleetRecord(current + 1, file.text, spec, file.directory, context.who, context.at, kept, engine)
    summary = "; ".join(map(str, steps[:_STEPS_NAMED])) + ("; …" if len(steps) > _STEPS_NAMED else "")
    return _fleet_written(view, Applied(record, tuple(steps)), "fleet applied", summary or "nothing changes", context)


def _still_kept(view: View) -> dict[str, KeptPool]:
    """Pools that the applied file dropped and that still serve."""
    record = view.fleet
    if record is None or not record.kept:
        return {}
    needed = needed_pools(record, fleet_of(record.spec), view.epoch, view.reconciled, view.open_rollouts)
    return {pool: kept for pool, kept in record.kept.items() if pool in needed}


def _under_way(view: View, kept: Collection[str], unchanged: bool) -> frozenset[str]:
    """What the applied file is already taking away, as ``takes_away`` names it: the user agreed to that before.

    ``unchanged``: the same file is applied again. It does not count for models: a model may also go because its
    repository no longer has it.
    """
    record, reconciled = view.fleet, view.reconciled
    if record is None:
        return frozenset()
    is_followed = reconciled.generation >= record.generation
    moving = {
        pool
        for rollout in view.open_rollouts
        if rollout.state != ABORTING and not rollout.abort_asked
        for change in rollout.changes.values()
        for pool in change.left
    }
    pools = {pool for pool in kept if unchanged or not is_followed or pool in moving}
    models = reconciled.retiring if is_followed else ()
    return frozenset((*(f"pool {pool}" for pool in pools), *(f"model {model}" for model in models)))


def _check_possible(steps: Sequence[Step]) -> None:
    if is_refused(steps):
        raise Conflict("; ".join(f"{step.name}: {step.detail}" for step in steps))


def _check_key(view: View, before: Fleet | None, after: Fleet, engine: str) -> None:
    """A key that is required refuses every record that has no seal of it: that would stop the fleet."""
    if before is None or engine == KUBERNETES:
        return
    if after.security.key is None or not after.security.key_required:
        if after.security.key is None and before.security.key is not None and before.security.key_required:
            raise Conflict(
                "security.key: processes that require the key would refuse the records of those that have none; apply "
                "the file with key_required: false first, see docs/fleet-key.md"
            )
        return
    if before.security.key is None:
        raise Conflict(
            "security.key: no record of the fleet is sealed yet; apply the file with key_required: false first, see "
            "docs/fleet-key.md"
        )
    unsealed = view.unsealed() if not before.security.key_required else []
    if unsealed:
        raise Conflict(
            f"security.key_required: {len(unsealed)} records are not sealed yet, such as {unsealed[0].key}; apply the "
            "file again when all processes have restarted with the key"
        )


def _check_agreed(steps: Sequence[Step], agreed: Collection[str] | bool) -> None:
    missing = [each for each in takes_away(steps) if agreed is False or (agreed is not True and each not in agreed)]
    if missing:
        raise NotAgreed(
            f'nothing was applied: it takes away {", ".join(missing)}; agree to that with --yes, or with "retire" in a '
            f"request to the API; the plan: {'; '.join(map(str, steps))}"
        )


def scale(view: View, pool: str, workers: int, context: RequestContext, agreed: bool = False) -> Decision[Applied]:
    """Set the number of workers of a pool, until a fleet.yaml is applied again. A change that leaves no working worker
    needs the user's agreement."""
    record, fleet = applied_fleet(view)
    one_of(pool, sorted(fleet.pools), "pool")
    settings = fleet.pools[pool]
    if settings.addresses:
        raise Conflict(f"pool {pool} consists of outside servers (addresses in fleet.yaml): no worker can be started")
    if settings.autoscale is not None and record.engine != KUBERNETES:
        raise Conflict(
            f"the autoscaler sets the workers of pool {pool}: change pools.{pool}.min or pools.{pool}.max in "
            f"fleet.yaml, or remove pools.{pool}.autoscale, and apply the file"
        )
    most = settings.max if settings.max is not None else _MOST_WORKERS
    if not settings.min <= workers <= most:
        raise InvalidArgument(f"workers: expected {settings.min} to {most}, the pool's limits, given {workers}")
    if workers == settings.workers:
        return Decision(Applied(record, ()))
    scaled = with_workers(fleet, pool, workers)
    planned = plan(
        at_present(fleet, record.engine, view),
        at_present(scaled, record.engine, view),
        directory=Path(record.directory),
        committed=view.assignments,
        kept=_still_kept(view),
        engine=record.engine,
        placements=view.placements,
    )
    # All other steps follow from the file or from rollouts in progress, not from scaling.
    steps = [step for step in planned if step.action == REFUSE or (step.kind, step.name) == ("pool", pool)]
    steps += losses_of_scaling(fleet, pool, workers, set(view.workers), view.drains)
    _check_possible(steps)
    _check_agreed(steps, agreed)
    spec = scaled.model_dump(mode="json")
    changed = msgspec.structs.replace(
        record, generation=record.generation + 1, spec=spec, by=context.who, at=context.at
    )
    summary = f"{pool} from {settings.workers} to {workers} workers"
    decision = _fleet_written(view, Applied(changed, tuple(steps)), "scaled", summary, context)
    reconciled = view.read(view.keys.reconciled, ReconciledRecord)
    if reconciled is None or reconciled.generation != record.generation:
        return decision
    # Scaling reconciles no models: ``latest`` is resolved again by the next apply.
    followed = Put(view.keys.reconciled, encode(msgspec.structs.replace(reconciled, generation=changed.generation)))
    unchanged = view.unchanged(view.keys.reconciled)
    return Decision(decision.answer, (*decision.compares, unchanged), (*decision.operations, followed))


def _standing(view: View, versions: Mapping[str, str]) -> dict[str, str]:
    """By model: the version that is served or, if the file asks for the same version as before, that version.

    A version that was rolled out or back by hand stands in that case (``desired.reconcile``), so the plan must not
    contain a rollout.
    """
    reconciled = view.reconciled
    asked = {name: version for name, version in versions.items() if reconciled.versions.get(name) == version}
    return {name: asked.get(name, served.version) for name, served in view.assignments.items()}


def _held_by_hand(view: View, versions: Mapping[str, str]) -> list[Step]:
    """Models whose version in the file has no effect: another one was rolled out or back by hand since."""
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


def _fleet_written(view: View, applied: Applied, what: str, detail: str, context: RequestContext) -> Decision[Applied]:
    key, record = view.keys.fleet, applied.record
    about = f"generation {record.generation}"
    reported = event(view.keys, EventRecord(context.at, context.who, what, about, detail), context.unique)
    return Decision(applied, (view.unchanged(key),), (Put(key, encode(record)), reported))
