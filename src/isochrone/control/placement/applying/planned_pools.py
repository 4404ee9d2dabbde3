"""Planned pools, as the leader sees them: what a plan is made of, and what workers really hold. Pure.

Planned pools are planned together: a model has ``min_replicas`` replicas over all of its planned pools. Its replicas in
other pools are on every worker there, and do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from isochrone.control.fleet.settings.process_names import worker_names
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.placement import workers as worker_states
from isochrone.control.placement.applying.execution import Holding, Needed
from isochrone.control.placement.figures import Figures
from isochrone.control.placement.fleet_inputs import (
    PlacementInputs,
    committed_needs,
    incoming_bytes,
    inputs_of,
    late_rather_than_never,
    needs_of,
    offer_of,
)
from isochrone.control.placement.needs import ModelNeeds
from isochrone.control.placement.plan import Plan
from isochrone.control.placement.workers import Replicas, WorkerOffer
from isochrone.control.rollout.desired_versions import LACKS_ROOM, Need, at_once, desired_versions, needed, stages_of
from isochrone.control.rollout.observed_state import UNAVAILABLE, ObservedWorker
from isochrone.control.state.assignment import Placements
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import KUBERNETES, Assignment, EpochRecord, PlacementRecord
from isochrone.control.state.rollout_records import ABORTING, DRAINING, PENDING, Change, RolloutRecord
from isochrone.control.state.view import View


@dataclass(frozen=True, slots=True)
class PlannedPools:
    """The planned pools of a fleet at one moment."""

    names: frozenset[str]
    inputs: PlacementInputs
    #: By worker that has reported.
    holdings: Mapping[str, Holding]
    #: By model that is served or about to be.
    needed: Mapping[str, Needed]
    #: By ensemble: the models that it runs.
    stages: Mapping[str, frozenset[str]]
    #: By model: bytes of one version, also of models that are no longer served.
    memory: Mapping[str, int]


def planned_names(fleet: Fleet) -> frozenset[str]:
    return frozenset(name for name, pool in fleet.pools.items() if pool.is_planned)


def expected_workers(fleet: Fleet, pools: Iterable[str]) -> dict[str, str]:
    """By worker that the file asks for: its pool. Servers at addresses are registered at once, and not among them."""
    return {name: pool for pool in pools for name in worker_names(fleet, pool)}


def excess_workers(fleet: Fleet, homes: Mapping[str, str], engine: str) -> frozenset[str]:
    """Workers with numbers above those of the file: they are about to stop. In pods, Kubernetes may have added them."""
    expected = expected_workers(fleet, set(homes.values()) & fleet.pools.keys())
    if engine == KUBERNETES:
        return frozenset()
    return frozenset(
        name for name, pool in homes.items() if name not in expected and name.removeprefix(f"{pool}-").isdecimal()
    )


def recorded_replicas(placements: Placements, pools: Collection[str]) -> dict[str, frozenset[str]]:
    """The replicas of some pools, by model."""
    found: dict[str, set[str]] = {}
    for pool in pools:
        for model, names in (placements.get(pool) or PlacementRecord()).replicas.items():
            found.setdefault(model, set()).update(names)
    return {model: frozenset(names) for model, names in found.items()}


def observed_replicas(view: View, observed: Mapping[str, ObservedWorker], pool: str) -> dict[str, tuple[str, ...]]:
    """The committed models that the workers of a pool have ready: the first replicas of a pool that becomes planned."""
    found: dict[str, tuple[str, ...]] = {}
    for model, each in sorted(view.assignments.items()):
        names = [name for name, one in observed.items() if one.record.pool == pool and each.version in one.ready(model)]
        if names and pool in each.pools:
            found[model] = tuple(sorted(names))
    return found


def planned_pools(
    fleet: Fleet,
    view: View,
    observed: Mapping[str, ObservedWorker],
    placements: Placements,
    starting: Collection[str],
    homes: Mapping[str, str],
    figures: Figures,
    rejected: Mapping[str, frozenset[str]] | None = None,
    excess: Collection[str] = (),
    late: Mapping[str, frozenset[str]] | None = None,
) -> PlannedPools:
    """``placements``: of the planned pools that have a record or get one now; others take no part. ``starting``:
    workers that are not registered and not lost either. ``homes``: by worker, registered or not, its pool.
    ``rejected``: by worker, models that it gave up. ``excess``: workers that are about to stop. ``late``: by worker,
    models whose load hangs: it counts as failed."""
    pools = planned_names(fleet) & placements.keys()
    needs = _needs(fleet, view, pools)
    known = {each.name: each for each in needs}
    ours = [observed.get(name) for name in homes]
    rollouts, epoch = at_once(view.open_rollouts), view.epoch or EpochRecord(0)
    memory = _sizes(needs, epoch, rollouts, ours, placements)
    drains = view.drains
    holdings = {
        name: _holding(worker, epoch, rollouts, placements, memory, name not in drains)
        for name, worker in observed.items()
        if worker.record.pool in pools and worker.models is not None
    }
    for name, models in (late or {}).items():
        if name in holdings:
            holdings[name] = replace(holdings[name], failed=holdings[name].failed | models)
    failed = {name: holding.failed for name, holding in holdings.items()}
    refused = {
        name: failed.get(name, frozenset()) | (rejected or {}).get(name, frozenset())
        for name in {*failed, *(rejected or {})}
    }
    workers = _offers(fleet, view, pools, {name: homes[name] for name in starting}, refused, excess)
    replicas = {
        model: frozenset(name for name in names if model not in failed.get(name, ()))
        for model, names in recorded_replicas(placements, pools).items()
    }
    execution = _needed(view, known, pools, rollouts, memory)
    inputs = late_rather_than_never(inputs_of(fleet, needs, workers, replicas, figures), figures.curves.keys())
    stages = stages_of(epoch, rollouts)
    return PlannedPools(pools, inputs, holdings, execution, stages, memory)


def _sizes(
    needs: Iterable[ModelNeeds],
    epoch: EpochRecord,
    rollouts: Iterable[RolloutRecord],
    observed: Iterable[ObservedWorker | None],
    placements: Placements,
) -> dict[str, int]:
    """By model: bytes of one version, also of models that are no longer served. While another version than the
    committed one may be somewhere, the most of any of them: the record keeps the size of a version that is replaced."""
    known = {model: size for record in placements.values() for model, size in record.memory.items()}
    found = dict(known)
    for each in needs:
        found[each.name] = max(each.memory, known.get(each.name, 0) if _lingers(each.name, epoch, observed) else 0)
    for rollout in rollouts:
        for model, change in rollout.changes.items():
            found[model] = max(found.get(model, 0), known.get(model, 0), change.memory)
    return found


def _lingers(model: str, epoch: EpochRecord, observed: Iterable[ObservedWorker | None]) -> bool:
    """Whether a worker has another version than the committed one, or is away, or has not reported."""
    committed = epoch.models[model].version if model in epoch.models else ""
    return any(
        worker is None or worker.models is None or worker.models.get(model, {}).keys() - {committed}
        for worker in observed
    )


def _stated(models: Mapping[str, Assignment], rollouts: Iterable[RolloutRecord]) -> set[tuple[str, str]]:
    """The versions whose memory the records state. Of others, the most that their model may take counts."""
    coming = {(model, change.version) for each in rollouts for model, change in each.changes.items()}
    return coming | {(model, each.version) for model, each in models.items()}


def _size(need: Need, stated: Collection[tuple[str, str]], memory: Mapping[str, int]) -> int:
    # A spare version counts as in ``desired_versions``, which unloads it where that is too much.
    is_known = need.spare or (need.model, need.version) in stated
    return need.memory if is_known else max(need.memory, memory.get(need.model, 0))


def _needed(
    view: View,
    needs: Mapping[str, ModelNeeds],
    pools: Collection[str],
    rollouts: Sequence[RolloutRecord],
    memory: Mapping[str, int],
) -> dict[str, Needed]:
    """Of all models that a planned pool serves or that an open rollout brings there or takes away, whatever is planned:
    their replicas are not unloaded as those of a retired model are."""
    changing = _pools_of_changes(view.open_rollouts)
    served = {name: frozenset(model.pools) for name, model in view.assignments.items()}
    stated, loads = _stated(view.assignments, rollouts), dict[str, dict[str, int]]()
    for pool in pools:
        # What a worker with all models of the pool has to have.
        for need in needed(WorkerRecord("", "", 0, 0, pool=pool), view.epoch or EpochRecord(0), rollouts).values():
            if not need.spare:
                loads.setdefault(need.model, {})[need.version] = _size(need, stated, memory)
    found = {}
    for name in sorted({*served, *changing}):
        its = served.get(name, frozenset()) | changing.get(name, frozenset())
        if its & frozenset(pools):
            least = needs[name].min_replicas if name in needs else 1
            found[name] = Needed(loads.get(name, {}), least, name in changing, its)
    return found


def _pools_of_changes(rollouts: Iterable[RolloutRecord]) -> dict[str, frozenset[str]]:
    """By model of a rollout that has begun: the pools that it brings the model to, and those that the model leaves."""
    found: dict[str, frozenset[str]] = {}
    for rollout in rollouts:
        for model, change in rollout.changes.items() if rollout.state != PENDING else ():
            found[model] = found.get(model, frozenset()).union(change.pools, change.left)
    return found


def _needs(fleet: Fleet, view: View, pools: Collection[str]) -> list[ModelNeeds]:
    """Of all models that a planned pool serves or that a rollout brings there or takes away."""
    changes, found = dict(_coming(view.open_rollouts)), []
    changing = _pools_of_changes(view.open_rollouts)
    incoming = {**_waiting_bytes(view.open_rollouts), **incoming_bytes(view.open_rollouts)}
    for name, model in view.assignments.items():
        # A rollout that moves it to other pools needs it there before the commit. One that takes it out of all planned
        # pools leaves it where it is until the rollout is over: its new pools may not have it yet.
        coming = changes[name].pools if name in changes else ()
        choices = (coming, model.pools, sorted(changing.get(name, ())))
        its = next((names for each in choices if (names := [pool for pool in each if pool in pools])), [])
        if its:
            found.append(committed_needs(fleet, name, model, incoming, its))
    for name, change in changes.items():
        its = [pool for pool in change.pools if pool in pools]
        if its and name not in view.assignments:
            stages = change.stages or fleet.of(name).stages
            found.append(needs_of(fleet, name, stages, change.memory, its))
    return sorted(found, key=lambda each: each.name)


def _waiting_bytes(rollouts: Iterable[RolloutRecord]) -> dict[str, int]:
    """By model: the bytes that a rollout will load once there is room for it."""
    return {
        model: change.memory
        for rollout in rollouts
        if rollout.state == PENDING and LACKS_ROOM in rollout.since
        for model, change in rollout.changes.items()
        if change.is_new
    }


def _coming(rollouts: Iterable[RolloutRecord]) -> Iterable[tuple[str, Change]]:
    """By model: the change that a rollout prepares."""
    for rollout in rollouts:
        if rollout.state not in (PENDING, ABORTING, DRAINING):
            yield from rollout.changes.items()


def _offers(
    fleet: Fleet,
    view: View,
    pools: Collection[str],
    starting: Mapping[str, str],
    failed: Mapping[str, frozenset[str]],
    excess: Collection[str],
) -> list[WorkerOffer]:
    drains = view.drains
    found = [
        replace(
            offer_of(fleet, each),
            machine=each.host,
            state=worker_states.DRAINING if name in drains or name in excess else worker_states.SERVING,
            rejected=failed.get(name, frozenset()),
        )
        for name, each in view.workers.items()
        if each.pool in pools
    ]
    for name, pool in sorted(starting.items()):
        spec = fleet.pools[pool]
        record = WorkerRecord(name, "", 0, 0, pool=pool, tier=spec.tier, device=spec.device, memory=spec.memory)
        found.append(offer_of(fleet, record))
    return found


def _holding(
    worker: ObservedWorker,
    epoch: EpochRecord,
    rollouts: Sequence[RolloutRecord],
    placements: Placements,
    memory: Mapping[str, int],
    serves: bool,
) -> Holding:
    told = needed(worker.record, epoch, rollouts, placements)
    stated, held = _stated(epoch.models, rollouts), dict[str, dict[str, int]]()
    for model, desired in desired_versions(worker.record, epoch, rollouts, placements).items():
        held[model] = {version: _size(told[model, version], stated, memory) for version in desired}
    leaving: dict[str, int] = {}
    for model, versions in (worker.models or {}).items():
        for version, loaded in versions.items():
            if loaded.state != UNAVAILABLE and version not in held.setdefault(model, {}):
                held[model][version] = memory.get(model, 0)
                leaving[model] = leaving.get(model, 0) + memory.get(model, 0)
    held = {model: each for model, each in held.items() if each}
    changes = dict(_coming(rollouts))
    served = {model: each.version for model, each in epoch.models.items()}
    awaited = {**{model: change.version for model, change in changes.items()}, **served}
    return Holding(
        worker.record.memory,
        held,
        frozenset(model for model, version in awaited.items() if version in worker.ready(model)),
        frozenset(
            model
            for model, failure in worker.failures.items()
            if model in served and served[model] in failure.versions and served[model] not in worker.ready(model)
        ),
        leaving=leaving,
        serves=serves,
        pool=worker.record.pool,
    )


def records_of(
    pools: PlannedPools,
    replicas: Replicas,
    reserved: Mapping[str, int],
    plan: Plan,
    homes: Mapping[str, str],
    before: Placements,
    lost: Collection[str],
) -> dict[str, PlacementRecord]:
    """The records of all planned pools. ``homes``: by worker, its pool. ``before``: the present records. What they say
    of a worker that has not reported and is not lost stays: it may still hold models that are no longer served."""
    held = {name: set(holding.held) for name, holding in pools.holdings.items()}
    silent = homes.keys() - held.keys() - frozenset(lost)
    kept = {name: size for each in before.values() for name, size in each.reserved.items() if name in silent}
    reserved = {**{name: size for name, size in reserved.items() if name not in silent}, **kept}
    allowed = {each.name: each.pools for each in pools.inputs.needs}
    least = {each.name: each.min_replicas for each in pools.inputs.needs}
    short = {model: why for model, why in plan.short.items() if len(plan.replicas.get(model, ())) < least.get(model, 0)}
    found = {}
    for pool in sorted(pools.names):
        its = {
            model: tuple(sorted(name for name in names if homes.get(name) == pool))
            for model, names in sorted(replicas.items())
        }
        its = {model: names for model, names in its.items() if names}
        there = {model for name, models in held.items() if homes.get(name) == pool for model in models}
        if any(homes[name] == pool for name in silent) and pool in before:
            there |= before[pool].memory.keys()
        found[pool] = PlacementRecord(
            its,
            {name: size for name, size in sorted(reserved.items()) if homes.get(name) == pool},
            {model: size for model, size in sorted(pools.memory.items()) if size and (model in its or model in there)},
            {model: why for model, why in sorted(plan.unplaced.items()) if pool in allowed.get(model, ())},
            {model: why for model, why in sorted(short.items()) if pool in allowed.get(model, ())},
        )
    return found
