"""The workers of autoscaled pools and what they are doing, from the records and the workers' reports. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from isochrone.control.fleet.settings.process_names import worker_names
from isochrone.control.fleet.settings.sections import FleetSections
from isochrone.control.rollout.observed_state import ObservedWorker
from isochrone.control.scaling.measured.pool_observation import PoolMembers, Shared
from isochrone.control.state.records import SUPERVISOR
from isochrone.control.state.view import View


def members_of(
    pools: Iterable[str],
    fleet: FleetSections,
    view: View,
    observed: Mapping[str, ObservedWorker],
    unavailable: Container[str] = (),
) -> dict[str, PoolMembers]:
    """By pool. ``fleet``: with the present sizes of its pools. ``unavailable``: workers that nobody counts on, such as
    those that users drained."""
    drained, standing_by = view.drains, view.standbys
    models: dict[str, list[str]] = {}
    for model, each in view.assignments.items():
        for pool in each.pools:
            models.setdefault(pool, []).append(model)
    registered: dict[str, list[str]] = {}
    for name, record in view.workers.items():
        registered.setdefault(record.pool, []).append(name)
    ready = {
        pool: [
            name
            for name in names
            if name not in drained and name not in standing_by and _has_loaded(observed.get(name), models.get(pool, ()))
        ]
        for pool, names in registered.items()
    }

    def shared(pool: str) -> dict[str, Shared]:
        found = {}
        for model in models.get(pool, ()):
            others = [each for each in view.assignments[model].pools if each != pool]
            if others:
                workers = tuple(name for other in others for name in ready.get(other, ()))
                found[model] = Shared(workers, len(others) + 1)
        return found

    def members(pool: str) -> PoolMembers:
        names, serving = set(worker_names(fleet, pool)), ready.get(pool, [])
        missing = sum(name in unavailable for name in names.difference(serving))
        return PoolMembers(
            models=frozenset(models.get(pool, ())),
            ready=tuple(serving),
            # Processes that have started and loaded nothing yet, and those that have not even registered.
            pending=max(0, fleet.pools[pool].workers - len(serving) - missing),
            standby=tuple(name for name in registered.get(pool, ()) if name in standing_by and name not in drained),
            # One that the supervisor replaces by a new process is not among them.
            draining=tuple(
                name
                for name in registered.get(pool, ())
                if name in drained and (name not in names or name in unavailable)
            ),
            shared=shared(pool),
        )

    return {pool: members(pool) for pool in pools if pool in fleet.pools}


def absent(pool: str, fleet: FleetSections, members: PoolMembers, drained: Container[str]) -> set[str]:
    """Workers of a pool's size that do not serve, do not stand by and are not drained: they start, or fail to."""
    present = {*members.ready, *members.standby}
    return {name for name in worker_names(fleet, pool) if name not in present and name not in drained}


def drained_by_users(view: View) -> set[str]:
    """The supervisor drains workers only to stop or replace them."""
    return {name for name, event in view.drains.items() if event.who != SUPERVISOR}


def available(pool: str, size: int, unavailable: Container[str]) -> int:
    """Workers that can be counted on, of a pool of a size."""
    return sum(f"{pool}-{number}" not in unavailable for number in range(1, size + 1))


def size_for(pool: str, desired: int, most: int, unavailable: Container[str]) -> int:
    """The size at which ``desired`` workers can be counted on: those that are not are replaced, up to ``most``."""
    size = available = 0
    while available < desired and size < most:
        size += 1
        available += f"{pool}-{size}" not in unavailable
    return size


def _has_loaded(worker: ObservedWorker | None, models: Iterable[str]) -> bool:
    """Whether it serves any model: one that a worker cannot load must not hide the others. A worker that has not
    reported to a new leader yet serves."""
    if worker is None or worker.models is None:
        return True
    return any(map(worker.ready, models))
