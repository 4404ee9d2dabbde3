"""The fleet with the sizes that the autoscaler gave its pools. Pure.

Everything that counts a pool's workers reads a fleet from here: ``workers`` of the file is only the size that an
autoscaled pool starts with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from isochrone.control.fleet.settings.pool_bounds import largest_size, smallest_size
from isochrone.control.fleet.settings.sections import FleetSections
from isochrone.control.state.rollout_records import RolloutRecord

_Fleet = TypeVar("_Fleet", bound=FleetSections)


def sized(fleet: _Fleet, sizes: Mapping[str, int]) -> _Fleet:
    """The fleet with ``workers`` of each autoscaled pool from ``sizes``, within the pool's bounds. Pools that are not
    autoscaled, or have no entry, are as in the file."""
    changed = {}
    for name, pool in fleet.pools.items():
        if pool.autoscale is None or name not in sizes:
            continue
        workers = min(max(sizes[name], smallest_size(pool)), largest_size(pool))
        if workers != pool.workers:
            changed[name] = pool.model_copy(update={"workers": workers})
    # Not validated again: names and ports were checked for the largest size.
    return fleet.model_copy(update={"pools": {**fleet.pools, **changed}}) if changed else fleet


def awake_for(fleet: _Fleet, open_rollouts: Iterable[RolloutRecord]) -> _Fleet:
    """The fleet with a worker in each empty autoscaled pool that a rollout in progress needs: a version is loaded
    before it is committed. A model that has a worker or a server in another of its pools needs none."""
    woken: set[str] = set()
    for rollout in open_rollouts:
        for change in rollout.changes.values():
            specs = {pool: fleet.pools[pool] for pool in change.pools if pool in fleet.pools}
            if not any(spec.workers or spec.addresses for spec in specs.values()):
                woken |= {pool for pool, spec in specs.items() if spec.autoscale is not None}
    changed = {pool: fleet.pools[pool].model_copy(update={"workers": 1}) for pool in woken}
    return fleet.model_copy(update={"pools": {**fleet.pools, **changed}}) if changed else fleet


def empty_pools(fleet: FleetSections) -> frozenset[str]:
    """Autoscaled pools that have no worker now, and get one when a request comes."""
    return frozenset(name for name, pool in fleet.pools.items() if pool.autoscale is not None and not pool.workers)
