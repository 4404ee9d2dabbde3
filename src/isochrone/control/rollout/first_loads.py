"""Which worker of a pool loads a new version before the others do. Pure.

A version that crashes in native code ends the process that loads it, and with it all that is served there. So one that
no worker of a pool has is loaded by one of them first; the others follow as soon as it is ready there. It costs the
time of one more load. All load it at once where a crash would cost nothing (the pool serves nothing, or is one worker)
or is not to be expected (a worker of the pool has it, or the rollout goes back to what was served before).
"""

from __future__ import annotations

import msgspec

from isochrone.control.records import RolloutRecord
from isochrone.control.rollout.world import WorkerView, World

#: When the last of the first loads had succeeded, in ``since`` of a rollout.
FIRST_LOADED = "first loads"


def with_first_loads(record: RolloutRecord, world: World) -> RolloutRecord:
    """The record with the workers that go first, by what is seen now."""
    first, since = dict(record.first_loads), record.since
    for pool in sorted({pool for change in record.changes.values() for pool in change.pools}):
        workers, chosen = world.of_pools((pool,)), first.get(pool)
        if not workers or chosen == "":
            continue
        if any(_has_all(record, worker) for worker in workers.values()) or not _is_risky(record, world, pool):
            first[pool] = ""
            since = {**since, FIRST_LOADED: world.now} if chosen else since
        elif chosen not in workers and (chosen or len(workers) > 1):
            # Not another than the one that loads it already because it was alone.
            first[pool] = min(
                workers, key=lambda name: (name not in record.workers, world.is_outdated(workers[name].record), name)
            )
    return msgspec.structs.replace(record, first_loads=first, since=since)


def _is_risky(record: RolloutRecord, world: World, pool: str) -> bool:
    """Whether a crash at load would cost something, and cannot be ruled out."""
    serves = any(pool in assignment.pools for assignment in world.epoch.models.values())
    return serves and record.kind != "rollback"


def _has_all(record: RolloutRecord, worker: WorkerView) -> bool:
    return all(
        change.version in worker.ready(name)
        for name, change in record.changes.items()
        if worker.record.pool in change.pools
    )
