"""The status of the whole fleet, from its records: what ``isochrone status`` shows. Pure.

A model is serving if the gateways report that a request would be answered now, never because it is committed. If the
epoch cannot be read, the status shows the newest offer of a gateway, with the gateway's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from isochrone.control.api.messages import GatewayStatus, ModelStatus, PoolStatus, Status, StoreState, WorkerStatus
from isochrone.control.fleet.derived.engine_processes import processes_on
from isochrone.control.fleet.derived.pool_sizes import empty_pools
from isochrone.control.fleet.reading.present_fleet import present_fleet
from isochrone.control.fleet.settings.pool_bounds import largest_size, smallest_size
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.process_records import GatewayRecord, ProcessRecord, RestartsRecord, WorkerRecord
from isochrone.control.state.records import KUBERNETES, Assignment, EventRecord, PoolSizeRecord
from isochrone.control.state.rollout_records import ABORTED, RolloutRecord
from isochrone.control.state.view import View

#: The state of a process that is not registered yet.
STARTING = "starting"
#: The end of a gateway's reason, meant for its callers; a reader of ``status`` does not need it.
_SEE_STATUS = "; see isochrone status"


def fleet_status(view: View, store: StoreState) -> Status:
    fleet, epoch, drains, rollouts = view.fleet, view.epoch, view.drains, view.open_rollouts
    reported_by, offered = _newest_offer(view)
    assignments = epoch.models if epoch is not None else offered
    wanted: dict[str, Any] = fleet.spec.get("models") or {} if fleet is not None else {}
    changing = {model: record for record in rollouts for model in record.changes}
    gateways = view.gateways
    names = sorted({*gateways, *view.known_gateways})
    present = present_fleet(fleet, view) if fleet is not None else None
    empty = empty_pools(present) if fleet is not None and present is not None and fleet.engine != KUBERNETES else ()
    return Status(
        fleet=view.keys.fleet_name,
        generation=view.generation,
        followed=view.reconciled.generation,
        epoch=epoch.epoch if epoch is not None else 0,
        leader=view.leader,
        store=store,
        models=tuple(
            _model(
                *(name, assignments.get(name), changing.get(name), gateways, reported_by, empty),
                view.signers.get(name, {}),
            )
            for name in sorted({*assignments, *wanted, *changing})
        ),
        workers=tuple(
            _worker(record, drains.get(name), name in view.standbys, gateways, view.load_failures.get(name, {}))
            for name, record in view.workers.items()
        ),
        gateways=tuple(_gateway(name, gateways.get(name), drains.get(name)) for name in names),
        rollouts=tuple(rollouts),
        aborted=_last_aborted(view.rollouts),
        processes=(*view.processes.values(), *_starting(view, present, names)),
        faults=tuple(view.faults()),
        xds_servers=tuple(view.xds_servers.values()),
        pools=_pools(view, present),
        access_fault=view.access_fault,
        restarts=_restarts(view),
    )


def _restarts(view: View) -> RestartsRecord | None:
    """Of a fleet that a supervisor runs: a record from before it moved into a cluster says nothing."""
    return None if view.fleet is not None and view.fleet.engine == KUBERNETES else view.restarts


def _pools(view: View, fleet: Fleet | None) -> tuple[PoolStatus, ...]:
    record = view.fleet
    if record is None or fleet is None or record.engine == KUBERNETES:
        return ()
    sizes = view.pool_sizes
    found = []
    for name, pool in fleet.pools.items():
        if pool.autoscale is not None:
            size = sizes.get(name, PoolSizeRecord(pool.workers))
            bounds = smallest_size(pool), largest_size(pool)
            found.append(PoolStatus(name, pool.workers, *bounds, size.reason, size.detail, size.at))
    return tuple(found)


def _starting(view: View, fleet: Fleet | None, gateways: Sequence[str]) -> list[ProcessRecord]:
    """Processes of the applied file, at its present size, that have not registered yet."""
    record = view.fleet
    if record is None or fleet is None:
        return []
    known = {*view.workers, *gateways, *view.processes}
    return [
        ProcessRecord(spec.name, spec.role, spec.pool, deaths=0, how=STARTING)
        for spec in processes_on(record.engine, fleet, Path(record.directory)).values()
        if spec.role != "controller" and spec.name not in known
    ]


def _newest_offer(view: View) -> tuple[str, Mapping[str, Assignment]]:
    """If the epoch cannot be read: the gateway with the newest offer, and the offer. "": there is none, or the epoch
    can be read."""
    if not view.is_epoch_lost:
        return "", {}
    gateways = view.gateways
    # An offer outlives the process of its gateway.
    offers = {
        name: offer
        for name, offer in view.served_epochs.items()
        if name in gateways and gateways[name].epoch == offer.epoch
    }
    newest = max(offers, key=lambda name: offers[name].epoch, default="")
    return newest, offers[newest].models if newest else {}


def _last_aborted(rollouts: Sequence[RolloutRecord]) -> RolloutRecord | None:
    """The last aborted rollout, unless a later rollout changed one of its models."""
    since: set[str] = set()
    for record in reversed(rollouts):
        if record.state == ABORTED and since.isdisjoint(record.changes):
            return record
        since.update(record.changes)
    return None


def _model(
    name: str,
    assignment: Assignment | None,
    rollout: RolloutRecord | None,
    gateways: Mapping[str, GatewayRecord],
    reported_by: str,
    empty: Collection[str],
    signers: Mapping[str, str],
) -> ModelStatus:
    served = assignment or Assignment(version="")
    state, fault = _answering(name, gateways) if assignment is not None else ("not served", "")
    if state == "unserved" and gateways and served.pools and all(pool in empty for pool in served.pools):
        state, fault = "asleep", ""
    return ModelStatus(
        name=name,
        version=served.version,
        digest=served.digest,
        previous=served.previous,
        canary=served.canary,
        stages=served.stages,
        pools=served.pools,
        state=rollout.state if rollout is not None else state,
        rollout=rollout.identity if rollout is not None else "",
        fault=fault,
        according_to=reported_by if assignment is not None else "",
        signed_by=signers.get(served.version, ""),
    )


def _answering(model: str, gateways: Mapping[str, GatewayRecord]) -> tuple[str, str]:
    """The state of a committed model, and why a request would not be answered now."""
    faults = {
        name: record.unserved.get(model, "" if record.epoch else "it has not read the epoch yet").removesuffix(
            _SEE_STATUS
        )
        for name, record in gateways.items()
    }
    failing = {name: fault for name, fault in faults.items() if fault}
    if not gateways:
        return "unserved", "no gateway is registered"
    if not failing:
        return "serving", ""
    if len(failing) == len(gateways):
        return "unserved", next(iter(failing.values()))
    names = ", ".join(failing)
    return "degraded", f"not by gateway {names}: {next(iter(failing.values()))}"


def _worker(
    record: WorkerRecord,
    drain: EventRecord | None,
    standby: bool,
    gateways: Mapping[str, GatewayRecord],
    load_failures: Mapping[str, str],
) -> WorkerStatus:
    faults = {name: each.workers[record.address] for name, each in gateways.items() if record.address in each.workers}
    fault = next(iter(faults.values()), "")
    if fault and len(faults) < len(gateways):
        fault = f"by gateway {', '.join(faults)}: {fault}"
    return WorkerStatus(
        name=record.name,
        address=record.address,
        metrics=_address(record.host, record.metrics_port),
        tls=record.tls,
        pool=record.pool,
        tier=record.tier,
        device=record.device,
        kind=record.kind,
        draining=drain is not None,
        draining_since=drain.at if drain is not None else 0.0,
        fault=fault,
        standby=standby,
        load_failures=dict(load_failures),
    )


def _gateway(name: str, record: GatewayRecord | None, drain: EventRecord | None) -> GatewayStatus:
    there = record or GatewayRecord(name=name, host="", port=0)
    return GatewayStatus(
        name=name,
        address=_address(there.host, there.port),
        metrics=_address(there.host, there.metrics_port),
        tls=there.tls,
        registered=record is not None,
        epoch=there.epoch,
        draining=drain is not None,
        draining_since=drain.at if drain is not None else 0.0,
        faults=there.faults,
        names=there.names,
    )


def _address(host: str, port: int) -> str:
    """ "" where there is no port."""
    if not port:
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
