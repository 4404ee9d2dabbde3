"""The applied fleet at its present size: the sizes of autoscaled pools are records of the store. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.control.fleet.derived.pool_sizes import awake_for, sized
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import KUBERNETES, FleetRecord
from isochrone.control.state.view import View


def present_fleet(record: FleetRecord, view: View) -> Fleet:
    """The fleet of a record. A pool whose size is absent or cannot be read has the size of the file."""
    return at_present(fleet_of(record.spec), record.engine, view)


def at_present(fleet: Fleet, engine: str, view: View, sizes: Mapping[str, int] | None = None) -> Fleet:
    """A fleet with its present sizes; ``sizes``: in place of those of the view. In pods they are those of the file:
    Kubernetes scales them."""
    if engine == KUBERNETES:
        return fleet
    found = present_sizes(view) if sizes is None else sizes
    return awake_for(sized(fleet, found), view.open_rollouts)


def present_sizes(view: View) -> dict[str, int]:
    """The sizes that the autoscaler has given, by pool."""
    return {pool: each.workers for pool, each in view.pool_sizes.items()}


def last_sizes(record: FleetRecord, view: View, before: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the autoscaled pools of a record; where one is absent or cannot be read now, the size ``before``."""
    known = {**before, **present_sizes(view)}
    pools = record.spec.get("pools") or {}
    # The size of a pool that is not autoscaled for a while is forgotten.
    return {pool: workers for pool, workers in known.items() if (pools.get(pool) or {}).get("autoscale") is not None}
