"""Whether the versions that a rollout asks for are in the repositories, before it starts.

Reads directories on the controller's machine, so it runs beside the event loop. What cannot be seen from here (a model
that only outside servers have, a repository on another machine) is left to the workers, which report it when they load.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isochrone.control.fleet.catalog import available_versions
from isochrone.control.fleet.reading import fleet_of
from isochrone.control.state.records import FleetRecord
from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.models.repository.versions import version_number


def check_versions(record: FleetRecord, changes: Mapping[str, str]) -> None:
    """Raises ``InvalidArgument`` for a version that is not there, with those that are."""
    fleet = fleet_of(record.spec)
    for model, version in changes.items():
        number = version_number(version)
        if number is None:
            continue  # refused for what it is, not for where it is not
        try:
            there = available_versions(fleet, model, Path(record.directory))
        except IsochroneError:
            continue
        if there and number not in there:
            versions = ", ".join(map(str, there))
            raise InvalidArgument(
                f"changes.{model}: expected a version that is in its repository ({versions}), given '{version}'"
            )
