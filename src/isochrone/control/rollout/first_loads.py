"""The choice of the worker of a pool that loads a new version before the others. Pure.

A version that crashes in native code ends the process that loads it, and with it everything served there. So a version
that no worker of a pool has is loaded by one of them first; the others load it as soon as it is ready there. This costs
the time of one load. All workers load it at once where a crash would cost nothing (the pool serves nothing, or has one
worker) or is unlikely (a worker of the pool has it, or the rollout is a rollback).

A worker that vanishes during its first load has probably crashed. Its restarted process gets the second attempt, so
that no other worker is put at risk. Another worker is chosen only if it stays away.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from isochrone.control.rollout.observed_state import ObservedState, ObservedWorker
from isochrone.control.state.rollout_records import RolloutRecord

#: A mark in ``since`` of a rollout: when a first load last succeeded or began again. Each attempt has the rollout's
#: whole time.
FIRST_LOADS = "first loads"
#: Seconds for the process of a worker that loads first to be restarted and to register again.
RETURN_SECONDS = 30.0
#: A mark in ``since`` of a rollout: when the worker of a pool that loads first was found to be gone.
_GONE = "worker that loads first is gone: "


def with_first_loads(record: RolloutRecord, observed: ObservedState) -> RolloutRecord:
    """The record with the workers that load first, by the observed state."""
    first, since = dict(record.first_loads), dict(record.since)
    for pool in sorted({pool for change in record.changes.values() for pool in change.pools}):
        workers, chosen, gone = _participants(record, observed, pool), first.get(pool), _GONE + pool
        if chosen == "":
            continue
        if workers and _is_harmless(record, observed, pool):
            first[pool] = ""
        elif chosen and chosen not in workers:
            away = observed.now - since.setdefault(gone, observed.now)
            if away < RETURN_SECONDS or not workers:
                continue
            first[pool] = _next(record, observed, workers)
        elif not chosen and len(workers) > 1:
            first[pool] = _next(record, observed, workers)
        came_back = since.pop(gone, None) is not None
        if chosen and (came_back or first[pool] != chosen):
            since[FIRST_LOADS] = observed.now
    return msgspec.structs.replace(record, first_loads=first, since=since)


def tries_began(record: RolloutRecord) -> float:
    """When the latest attempt at a first load began, was cut off or succeeded; 0: none did."""
    marks = [at for mark, at in record.since.items() if mark == FIRST_LOADS or mark.startswith(_GONE)]
    return max(marks, default=0.0)


def _next(record: RolloutRecord, observed: ObservedState, workers: Mapping[str, ObservedWorker]) -> str:
    """The worker that loads it already because it was the only one; otherwise one that can begin at once."""
    return min(
        workers,
        key=lambda name: (
            name not in record.workers,
            observed.is_outdated(workers[name].record),
            workers[name].models is None,
            name,
        ),
    )


def _is_harmless(record: RolloutRecord, observed: ObservedState, pool: str) -> bool:
    """Whether a crash at load would cost nothing, or is unlikely."""
    serves = any(pool in assignment.pools for assignment in observed.epoch.models.values())
    return (
        not serves
        or record.kind == "rollback"
        or any(
            _has_all(record, worker, observed) and not observed.is_outdated(worker.record)
            for worker in _participants(record, observed, pool).values()
        )
    )


def _participants(record: RolloutRecord, observed: ObservedState, pool: str) -> dict[str, ObservedWorker]:
    """The workers of a pool that load any of the changes."""
    return {
        name: worker
        for model, change in record.changes.items()
        if pool in change.pools
        for name, worker in observed.assigned(model, (pool,)).items()
    }


def _has_all(record: RolloutRecord, worker: ObservedWorker, observed: ObservedState) -> bool:
    return all(
        change.version in worker.ready(name)
        for name, change in record.changes.items()
        if observed.is_assigned(worker, name, change.pools)
    )
