"""The seal of a supervisor's store: by the key that the applied file names, and by another one once that is applied."""

from __future__ import annotations

from pathlib import Path

from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.settings.sections import FleetSections
from isochrone.errors import FlagError
from isochrone.secure.fleet_key import read_fleet_key
from isochrone.store.opening import seal_of
from isochrone.store.seals import Seal


def fleet_seal(fleet: FleetSections, directory: Path) -> Seal:
    """``directory``: of the file. Raises ``FlagError``."""
    security = fleet.security
    if security.key is None:
        return Seal()
    key = read_fleet_key(absolute(security.key, directory), "security.key")
    return seal_of(key, accepts_unsealed=not security.key_required)


def next_seal(present: Seal, fleet: FleetSections, directory: Path) -> Seal:
    """The seal of another applied file. Raises ``FlagError`` if processes that still have the present key and those
    that are started with the next one would refuse each other's records."""
    found = fleet_seal(fleet, directory)
    if not found.understands(present):
        expected = "a file whose first line is accepted already, and that has the present key on another line"
        raise FlagError("security.key", expected, f"{fleet.security.key}, with other keys")
    return found
