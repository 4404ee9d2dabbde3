"""The seal of a supervisor's store: by the key that the applied file names, and by another one once that is applied."""

from __future__ import annotations

from pathlib import Path

from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.settings.sections import FleetSections
from isochrone.control.state.records import KUBERNETES
from isochrone.secure.fleet_key import read_fleet_key
from isochrone.store.opening import seal_of
from isochrone.store.seals import Seal


def fleet_seal(fleet: FleetSections, directory: Path, engine: str) -> Seal:
    """``directory``: of the file. In a cluster, no process has the key. Raises ``FlagError``."""
    security = fleet.security
    if security.key is None or engine == KUBERNETES:
        return Seal()
    key = read_fleet_key(absolute(security.key, directory), "security.key")
    return seal_of(key, accepts_unsealed=not security.key_required)
