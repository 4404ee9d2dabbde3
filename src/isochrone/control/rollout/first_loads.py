"""Which worker of a pool loads a new version before the others do. Pure.

A version that crashes in native code ends the process that loads it, and with it all that is served there. So one that
no worker of a pool has is loaded by one of them first; the others follow as soon as it is ready there. It costs the
time of one more load. All load it at once where a crash would cost nothing (the pool serves nothing, or is one worker)
or is not to be expected (a worker of the pool has it, or the rollout goes back to what was served before).

A worker that vanishes under its first load has probably crashed: the second try is for its restarted process, so that
no other worker is put at risk. Only when it stays away is another one chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from isochrone.control.rollout.observed_state import WorkerView, World
from isochrone.control.state.records import RolloutRecord

#: When the first loads last changed, in ``since`` of a rollout: one has succeeded, or begins again. Each try has the
#: rollout's whole time.
FIRST_LOADS = "first loads"
#: Seconds for the process of a worker that loads first to be restarted and to register again.
RETURN_SECONDS = 30.0
#: When the worker of a pool that loads first was seen to be gone, in ``since`` of a rollout.
_GONE = "worker that loads first is gone: "


def with_first_loads(record: RolloutRecord, world: World) -> RolloutRecord:
    """The record with the workers that go first, by what is seen now."""
    first, since = dict(record.first_loads), dict(record.since)
    for pool in sorted({pool for change in record.changes.values() for pool in change.pools}):
        workers, chosen, gone = world.of_pools((pool,)), first.get(pool), _GONE + pool
        if chosen == "":
            continue
        if workers and _is_harmless(record, world, pool):
            first[pool] = ""
        elif chosen and chosen not in workers:
            away = world.now - since.setdefault(gone, world.now)
            if away < RETURN_SECONDS or not workers:
                continue
            first[pool] = _next(record, world, workers)
        elif not chosen and len(workers) > 1:
            first[pool] = _next(record, world, workers)
        came_back = since.pop(gone, None) is not None
        if chosen and (came_back or first[pool] != chosen):
            since[FIRST_LOADS] = world.now
    return msgspec.structs.replace(record, first_loads=first, since=since)


def tries_began(record: RolloutRecord) -> float:
    """When the latest try of a first load began or was cut off, or the last one succeeded; 0: neither."""
    marks = [at for mark, at in record.since.items() if mark == FIRST_LOADS or mark.startswith(_GONE)]
    return max(marks, default=0.0)


def _next(record: RolloutRecord, world: World, workers: Mapping[str, WorkerView]) -> str:
    """Not another than the one that loads it already because it was alone; else one that can begin at once."""
    return min(
        workers,
        key=lambda name: (
            name not in record.workers,
            world.is_outdated(workers[name].record),
            workers[name].models is None,
            name,
        ),
    )


def _is_harmless(record: RolloutRecord, world: World, pool: str) -> bool:
    """Whether a crash at load would cost nothing, or is not to be expected."""
    serves = any(pool in assignment.pools for assignment in world.epoch.models.values())
    return (
        not serves
        or record.kind == "rollback"
        or any(
            _has_all(record, worker) and not world.is_outdated(worker.record)
            for worker in world.of_pools((pool,)).values()
        )
    )


def _has_all(record: RolloutRecord, worker: WorkerView) -> bool:
    return all(
        change.version in worker.ready(name)
        for name, change in record.changes.items()
        if worker.record.pool in change.pools
    )
