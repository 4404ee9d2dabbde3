"""The bounds of a pool's size. A pool without ``autoscale`` has the size of the file. Pure."""

from __future__ import annotations

from typing import TypeVar

from isochrone.control.fleet.settings.sections import FleetSections, Pool

_Fleet = TypeVar("_Fleet", bound=FleetSections)


def smallest_size(pool: Pool) -> int:
    """The fewest workers that the pool may have, without standby workers."""
    if pool.autoscale is None:
        return pool.workers
    return 0 if pool.autoscale.zero_after_seconds is not None else max(1, pool.min)


def largest_size(pool: Pool) -> int:
    """The most workers that the pool may have, without standby workers."""
    return pool.workers if pool.autoscale is None or pool.max is None else pool.max


def at_largest(fleet: _Fleet) -> _Fleet:
    """The fleet with as many workers as its pools may have: their names and ports are taken."""
    grown = {
        name: pool.model_copy(update={"workers": largest_size(pool)})
        for name, pool in fleet.pools.items()
        if pool.workers != largest_size(pool)
    }
    return fleet.model_copy(update={"pools": {**fleet.pools, **grown}}) if grown else fleet
