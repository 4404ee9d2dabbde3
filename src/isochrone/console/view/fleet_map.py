"""The fleet map: tiers, their pools and workers, the gateways and the models, with versions and epochs. Pure.

It changes with the store. Loads and latencies, which change every second, are in ``second_view``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from isochrone.control.api.messages import GatewayStatus, ModelStatus, Status, WorkerStatus

#: States of a worker's tile.
SERVING, DRAINING, STANDBY, FAULTY, STARTING, GONE = "serving", "draining", "standby", "faulty", "starting", "gone"
#: Characters of a digest: enough to see that two differ.
_DIGEST = 8


@dataclass(frozen=True, slots=True)
class WorkerTile:
    name: str
    address: str
    device: str
    #: "isochrone", or another server of the protocol.
    kind: str
    state: str
    #: Versions that it should serve, as "detector 2"; a canary's as "detector 3 (5%)".
    versions: tuple[str, ...] = ()
    #: Why it gets no requests, or what it cannot load; "": nothing is wrong.
    fault: str = ""
    #: What an open rollout does on it: "loading", "ready"; "": nothing.
    rollout: str = ""


@dataclass(frozen=True, slots=True)
class PoolMap:
    name: str
    workers: tuple[WorkerTile, ...]
    #: How the autoscaler sizes it; "": it does not.
    sizing: str = ""


@dataclass(frozen=True, slots=True)
class TierMap:
    #: "": workers without a tier.
    name: str
    pools: tuple[PoolMap, ...]


@dataclass(frozen=True, slots=True)
class GatewayTile:
    name: str
    address: str
    epoch: int
    #: "serving", "draining", "gone" (its lease expired).
    state: str
    #: Whether it serves another epoch than the committed one.
    is_behind: bool
    fault: str = ""


@dataclass(frozen=True, slots=True)
class ModelRow:
    name: str
    version: str
    previous: str
    digest: str
    state: str
    fault: str
    pools: tuple[str, ...]
    stages: tuple[str, ...]
    #: Of requests that carry none; 0: none.
    deadline_ms: float
    #: "": no canary.
    canary: str = ""
    canary_share: float = 0.0
    rollout: str = ""


@dataclass(frozen=True, slots=True)
class FleetMap:
    tiers: tuple[TierMap, ...]
    gateways: tuple[GatewayTile, ...]
    models: tuple[ModelRow, ...]


def fleet_map(
    status: Status,
    deadlines_ms: Mapping[str, float],
    replicas: Mapping[str, Mapping[str, Sequence[str]]],
    pool_order: Sequence[str] = (),
) -> FleetMap:
    """``deadlines_ms``: by model. ``replicas``: of planned pools, by pool, by model: the workers that have it.
    ``pool_order``: the pools as the fleet's file names them."""
    return FleetMap(
        _tiers(status, replicas, pool_order),
        tuple(_gateway(each, status.epoch) for each in status.gateways),
        tuple(_model(each, deadlines_ms.get(each.name, 0.0)) for each in status.models),
    )


def _tiers(
    status: Status, replicas: Mapping[str, Mapping[str, Sequence[str]]], pool_order: Sequence[str]
) -> tuple[TierMap, ...]:
    progress = {
        name: each.state for rollout in status.rollouts for name, each in rollout.workers.items() if not rollout.is_over
    }
    tiers: dict[str, dict[str, list[WorkerTile]]] = {}
    tier_of_pool: dict[str, str] = {}
    place = {name: index for index, name in enumerate(pool_order)}
    for worker in sorted(status.workers, key=lambda each: (place.get(each.pool, len(place)), each.pool)):
        versions = tuple(_versions(worker, status.models, replicas.get(worker.pool)))
        tile = _tile(worker, versions, progress.get(worker.name, ""))
        tiers.setdefault(worker.tier, {}).setdefault(worker.pool, []).append(tile)
        tier_of_pool.setdefault(worker.pool, worker.tier)
    for process in status.processes:
        if process.role == "worker" and not any(process.name == each.name for each in status.workers):
            tier = tier_of_pool.get(process.pool, "")
            fault = process.error or process.waits or (process.how if process.deaths else "")
            state = GONE if process.deaths else STARTING
            tiers.setdefault(tier, {}).setdefault(process.pool, []).append(
                WorkerTile(process.name, "", "", "isochrone", state, fault=fault)
            )
    sizes = {each.name: f"{each.least}–{each.most} workers, {each.reason or 'as in the file'}" for each in status.pools}
    return tuple(
        TierMap(
            tier,
            tuple(
                PoolMap(pool, tuple(sorted(tiles, key=lambda each: _natural(each.name))), sizes.get(pool, ""))
                for pool, tiles in pools.items()
            ),
        )
        for tier, pools in tiers.items()
    )


def _natural(name: str) -> tuple[str, int, str]:
    """cpu-2 before cpu-10."""
    stem = name.rstrip("0123456789")
    number = name[len(stem) :]
    return stem, int(number) if number and len(number) < 10 else -1, name


def _versions(
    worker: WorkerStatus, models: Iterable[ModelStatus], planned: Mapping[str, Sequence[str]] | None
) -> Iterable[str]:
    for model in models:
        if worker.pool not in model.pools or not model.version:
            continue
        if planned is not None and worker.name not in planned.get(model.name, ()):
            continue
        yield f"{model.name} {model.version}"
        if model.canary is not None:
            yield f"{model.name} {model.canary.version} ({model.canary.weight:.0%})"


def _tile(worker: WorkerStatus, versions: tuple[str, ...], rollout: str) -> WorkerTile:
    failures = "; ".join(f"{model}: {why}" for model, why in worker.load_failures.items())
    if worker.draining:
        state = DRAINING
    elif worker.fault:
        state = FAULTY
    else:
        state = STANDBY if worker.standby else SERVING
    fault = worker.fault or (f"cannot load {failures}" if failures else "")
    return WorkerTile(worker.name, worker.address, worker.device, worker.kind, state, versions, fault, rollout)


def _gateway(gateway: GatewayStatus, epoch: int) -> GatewayTile:
    state = GONE if not gateway.registered else DRAINING if gateway.draining else SERVING
    faults = [f"{key}: {why}" for key, why in {**gateway.faults, **gateway.names}.items()]
    return GatewayTile(
        gateway.name, gateway.address, gateway.epoch, state, gateway.epoch != epoch, "; ".join(faults)[:300]
    )


def _model(model: ModelStatus, deadline_ms: float) -> ModelRow:
    canary = model.canary
    return ModelRow(
        model.name,
        model.version,
        model.previous,
        model.digest[:_DIGEST],
        model.state,
        model.fault,
        model.pools,
        model.stages,
        deadline_ms,
        canary.version if canary is not None else "",
        canary.weight if canary is not None else 0.0,
        model.rollout,
    )
