"""Needs and offers of a fleet.yaml, and of a fleet's records where a control plane runs. Pure.

What nobody measured is not invented: each gap is one sentence of ``assumptions``, for the reader of a plan. Callers may
state figures themselves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isochrone.control.fleet.derived.outside_servers import server_records
from isochrone.control.fleet.reading.present_fleet import present_fleet
from isochrone.control.fleet.settings.process_names import worker_names
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.placement.figures import UNMEASURED, Figures, StatedFigures, measured_figures
from isochrone.control.placement.needs import ModelNeeds
from isochrone.control.placement.workers import DRAINING, LOST, SERVING, Replicas, WorkerOffer
from isochrone.control.rollout.desired_versions import LOADED_IN
from isochrone.control.state.assignment import is_assigned
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment
from isochrone.control.state.rollout_records import RolloutRecord
from isochrone.control.state.view import View
from isochrone.errors import InvalidArgument, NotFound

#: Names that a sentence lists.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class PlacementInputs:
    """What a plan is made of."""

    needs: tuple[ModelNeeds, ...]
    workers: tuple[WorkerOffer, ...]
    #: The present replicas.
    replicas: Replicas
    #: What is not known, one sentence each.
    assumptions: tuple[str, ...]


def of_file(fleet: Fleet, stages: Mapping[str, Sequence[str]], stated: StatedFigures) -> PlacementInputs:
    """Of a fleet that does not run: nothing stands. ``stages``: by model of the fleet, those of its ensemble."""
    needs = [needs_of(fleet, name, stages[name], fleet.of(name).memory) for name in sorted(stages)]
    workers = [
        offer_of(fleet, WorkerRecord(name, "", 0, 0, pool=pool, tier=spec.tier, device=spec.device, memory=spec.memory))
        for pool, spec in fleet.pools.items()
        for name in worker_names(fleet, pool)
    ]
    workers += [offer_of(fleet, record) for record in server_records(fleet)]
    _check(stated, needs, workers)
    inputs = inputs_of(fleet, needs, _without(workers, stated), {}, stated.over(UNMEASURED))
    return replace(inputs, assumptions=(*inputs.assumptions, "each worker is taken for a machine of its own"))


def of_records(view: View, stated: StatedFigures) -> PlacementInputs:
    """Of a running fleet: a worker has the committed models of its pool, in a planned pool those that it was given,
    except those that it could not load. What the leader measured counts where the caller states nothing."""
    record = view.fleet
    if record is None:
        raise NotFound("no fleet.yaml has been applied yet; run 'isochrone apply FILE'")
    view.require(view.keys.epoch)
    fleet, failures, drains = present_fleet(record, view), view.load_failures, view.drains
    placements, incoming = view.placements, incoming_bytes(view.open_rollouts)
    needs = [
        committed_needs(fleet, name, each, incoming, each.pools) for name, each in sorted(view.assignments.items())
    ]
    workers = [
        replace(
            offer_of(fleet, each),
            machine=each.host,
            state=DRAINING if name in drains else SERVING,
            rejected=frozenset(failures.get(name, ())),
        )
        for name, each in view.workers.items()
    ]
    workers += [
        replace(each, state=LOST)
        for each in of_file(fleet, {}, StatedFigures()).workers
        if each.name not in view.workers
    ]
    replicas = {
        model: frozenset(
            name
            for name, worker in view.workers.items()
            if is_assigned(worker, model, each.pools, placements) and model not in failures.get(name, {})
        )
        for model, each in view.assignments.items()
    }
    _check(stated, needs, workers)
    measured = measured_figures(view.figures)
    inputs = inputs_of(fleet, needs, _without(workers, stated), replicas, stated.over(measured))
    return late_rather_than_never(inputs, measured.curves.keys() - stated.run_ms.keys())


def committed_needs(
    fleet: Fleet, name: str, model: Assignment, incoming: Mapping[str, int], pools: Sequence[str]
) -> ModelNeeds:
    """Of a model that is served. ``incoming``: the result of ``incoming_bytes``."""
    canary = model.memory if model.canary is not None and name not in incoming else 0
    needs = needs_of(fleet, name, model.stages, model.memory, pools)
    return replace(needs, incoming=incoming.get(name, 0) + canary)


def needs_of(
    fleet: Fleet, name: str, stages: Sequence[str], memory: int, pools: Sequence[str] | None = None
) -> ModelNeeds:
    spec = fleet.of(name)
    device = spec.traffic.get("device")
    return ModelNeeds(
        name,
        memory=memory,
        budget=spec.slo.deadline_ms / 1000 or math.inf,
        devices=(device,) if isinstance(device, str) and device else (),
        pools=tuple(fleet.pools_of(name) if pools is None else pools),
        tiers=_tiers(spec.traffic.get("tiers")),
        min_replicas=spec.min_replicas,
        isolated=spec.alone,
        apart=spec.apart,
        together=tuple(stages),
        changes_with=spec.changes_with,
    )


def _tiers(rule: Any) -> tuple[str, ...]:
    """The tiers that the gateway's rule names, from near to far. The rule was checked with the file."""
    order = rule.get("order", ()) if isinstance(rule, dict) else rule
    return tuple(map(str, order)) if isinstance(order, list | tuple) else ()


def offer_of(fleet: Fleet, record: WorkerRecord) -> WorkerOffer:
    pool = fleet.pools.get(record.pool)
    return WorkerOffer(
        record.name,
        memory=record.memory,
        device=record.device,
        pool=record.pool,
        tier=record.tier,
        # The file states one way.
        round_trip=2 * pool.distance_ms / 1000 if pool is not None else 0.0,
    )


def incoming_bytes(rollouts: Iterable[RolloutRecord]) -> dict[str, int]:
    """By model: the bytes that a rollout under way loads beside the served version."""
    return {
        model: change.memory
        for rollout in rollouts
        if rollout.state in LOADED_IN
        for model, change in rollout.changes.items()
        if change.is_new
    }


def inputs_of(
    fleet: Fleet, needs: Sequence[ModelNeeds], workers: Sequence[WorkerOffer], replicas: Replicas, figures: Figures
) -> PlacementInputs:
    known = [_with_figures(each, figures) for each in needs]
    trips = figures.round_trips
    offers = [replace(each, round_trip=trips.get(each.name, each.round_trip)) for each in workers]
    return PlacementInputs(tuple(known), tuple(offers), replicas, tuple(_assumptions(fleet, known, offers, trips)))


def late_rather_than_never(inputs: PlacementInputs, measured: Collection[str]) -> PlacementInputs:
    """Without the deadlines of models whose measured times keep them on no worker. A worker with too much load is slow:
    a model must not lose its last place, or its second one, to times that another replica would shorten."""
    late = {each.name for each in inputs.needs if each.name in measured and _is_late(each, inputs.workers)}
    if not late:
        return inputs
    needs = tuple(replace(each, budget=math.inf) if each.name in late else each for each in inputs.needs)
    said = f"the deadline of {_some(late)} does not count: by the measured times no worker keeps it"
    return replace(inputs, needs=needs, assumptions=(*inputs.assumptions, said))


def _is_late(needs: ModelNeeds, workers: Iterable[WorkerOffer]) -> bool:
    allowed = [each for each in workers if each.state != LOST and (not needs.pools or each.pool in needs.pools)]
    return bool(allowed) and not any(
        needs.budget > each.round_trip
        and needs.seconds_per_row(each.device, needs.budget - each.round_trip) is not None
        for each in allowed
        if not needs.devices or each.device in needs.devices
    )


def _without(workers: Iterable[WorkerOffer], stated: StatedFigures) -> list[WorkerOffer]:
    return [replace(each, state=LOST) if each.name in stated.without else each for each in workers]


def _with_figures(needs: ModelNeeds, figures: Figures) -> ModelNeeds:
    return replace(
        needs,
        rate=figures.rates.get(needs.name),
        curves=figures.curves.get(needs.name, {}),
        instances=figures.instances.get(needs.name, 1),
    )


def _check(stated: StatedFigures, needs: Iterable[ModelNeeds], offers: Iterable[WorkerOffer]) -> None:
    models, workers = {each.name for each in needs}, {each.name for each in offers}
    for name, amounts in (("rate", stated.rates), ("run_ms", stated.run_ms)):
        for model, amount in amounts.items():
            if model not in models:
                raise InvalidArgument(f"{name}: expected a model of the fleet ({_some(models)}), given '{model}'")
            if not 0 <= amount < math.inf or (name == "run_ms" and not amount):
                raise InvalidArgument(f"{name} of {model}: expected a number above 0, given {amount:g}")
    if unknown := sorted(stated.without - workers):
        raise InvalidArgument(f"without: expected a worker of the fleet ({_some(workers)}), given '{unknown[0]}'")


def _assumptions(
    fleet: Fleet, needs: Sequence[ModelNeeds], workers: Sequence[WorkerOffer], round_trips: Container[str]
) -> Iterable[str]:
    if unmeasured := [each.name for each in needs if each.rate is None]:
        yield f"the rate of {_some(unmeasured)} is not measured: replicas are neither added nor given back for load"
    # The time of an ensemble is that of its stages.
    if untimed := [each.name for each in needs if not each.curves and each.rate and not each.together]:
        yield f"the run time of {_some(untimed)} is not stated: it takes no compute"
    if unsized := [each.name for each in needs if not each.memory]:
        yield f"the memory of {_some(unsized)} is not stated (models.NAME.memory): it takes none"
    if pools := sorted({each.pool for each in workers if not each.memory}):
        yield f"the memory of pool {_some(pools)} is not stated (pools.NAME.memory): it is not checked"
    stated = {each.pool for each in workers if each.name not in round_trips}
    if pools := sorted(name for name in stated & fleet.pools.keys() if fleet.pools[name].distance_ms):
        yield f"round trips of pool {_some(pools)} are those of the file (pools.NAME.distance_ms), not measured ones"
    yield "each worker runs one batch at a time"


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(ordered[:_NAMED]) + more or "none"
