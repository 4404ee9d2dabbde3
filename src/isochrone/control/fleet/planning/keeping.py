"""Dropped pools that keep running because they serve committed versions. Pure.

A renamed or removed pool, or one without workers, is recorded with the file that drops it (``kept``). The supervisor
runs its processes, and the leader registers its servers, until the models have moved or are retired. If the rollout
aborts, the pool stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from isochrone.control.fleet.derived.engine_processes import processes_on
from isochrone.control.fleet.derived.outside_servers import server_records
from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import EpochRecord, FleetRecord, KeptPool, ReconciledRecord
from isochrone.control.state.rollout_records import RolloutRecord


def kept_pools(
    record: FleetRecord | None,
    before: Fleet | None,
    after: Fleet,
    epoch: EpochRecord | None,
    open_rollouts: Iterable[RolloutRecord],
) -> dict[str, KeptPool]:
    """Pools of the present fleet (``record``, which holds ``before``) that ``after`` drops and that are still needed.

    Needed are the pools of the epoch, those of rollouts in progress, which may commit, and those that rollouts left:
    gateways that have not seen the commit send requests there. If the epoch cannot be read, all are.
    """
    if record is None or before is None:
        return {}
    if epoch is None:
        committed = {*before.pools, *record.kept}
    else:
        committed = {pool for assignment in epoch.models.values() for pool in assignment.pools}
    changes = [change for rollout in open_rollouts for change in rollout.changes.values()]
    committed |= {pool for change in changes for pool in (*change.left, *change.pools)}
    dropped = {pool for pool in committed if _is_dropped(pool, after)}
    running = processes_on(record.engine, before, Path(record.directory))
    found: dict[str, KeptPool] = {}
    for pool in sorted(dropped):
        if pool in before.pools and not _is_dropped(pool, before):
            specs = {name: spec for name, spec in running.items() if spec.pool == pool}
            found[pool] = KeptPool(
                {name: spec.arguments for name, spec in specs.items()},
                tuple(server for server in server_records(before) if server.pool == pool),
                {name: spec.needs for name, spec in specs.items() if spec.needs is not None},
            )
        elif pool in record.kept:
            found[pool] = record.kept[pool]
    return found


def _is_dropped(pool: str, fleet: Fleet) -> bool:
    """Whether a fleet runs nothing in a pool, and never will."""
    spec = fleet.pools.get(pool)
    return spec is None or not spec.may_serve


def needed_pools(
    record: FleetRecord,
    fleet: Fleet,
    epoch: EpochRecord | None,
    reconciled: ReconciledRecord,
    open_rollouts: Iterable[RolloutRecord],
) -> frozenset[str]:
    """The kept pools that still serve committed versions; all, if the epoch cannot be read."""
    if epoch is None:
        return frozenset(record.kept)
    # Gateways that have not seen a commit send requests to the pools that it left, and versions that are being prepared
    # in a pool may be committed there.
    changes = [change for rollout in open_rollouts for change in rollout.changes.values()]
    found = {pool for change in changes for pool in (*change.left, *change.pools)}
    followed = reconciled.generation >= record.generation
    for name, assignment in epoch.models.items():
        settled = followed and name not in reconciled.retiring and set(assignment.pools) == set(fleet.pools_of(name))
        if not settled:
            found.update(assignment.pools)
    return frozenset(found & record.kept.keys())


def kept_processes(record: FleetRecord, needed: Iterable[str]) -> dict[str, ProcessSpec]:
    """The processes of kept pools, as they were started."""
    return {name: spec for pool in needed for name, spec in specs_of(pool, record.kept[pool]).items()}


def specs_of(pool: str, kept: KeptPool) -> dict[str, ProcessSpec]:
    """The processes of one kept pool."""
    return {
        name: ProcessSpec(name, "worker", arguments, pool, kept.needs.get(name))
        for name, arguments in kept.processes.items()
    }
