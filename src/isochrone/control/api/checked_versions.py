"""Checks that the versions which a request asks for are in the repositories and fit together.

On a thread: reads files, or asks the store of a remote repository. ``requests`` decides the rest from records alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isochrone.control.fleet.planning.plan import rollout_groups
from isochrone.control.fleet.reading.catalog import check_versions
from isochrone.control.fleet.reading.file import FleetFile
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.reading.remote_models import check_remote_models
from isochrone.control.state.records import Assignment, FleetRecord
from isochrone.control.state.view import View


def check_file(view: View, file: FleetFile, served: Mapping[str, Assignment]) -> None:
    before = {name: assignment.version for name, assignment in served.items()}
    changed = [name for name, version in file.versions.items() if before.get(name) != version]
    groups = rollout_groups(file.fleet, changed, file.stages)
    check_remote_models(file.fleet, Path(file.directory), before, file.versions, groups, _addresses(view))


def check_rollout(view: View, record: FleetRecord, changes: Mapping[str, str]) -> None:
    check_versions(record, changes)
    before = {name: assignment.version for name, assignment in view.assignments.items()}
    after = {**before, **changes}
    spec, directory = fleet_of(record.spec), Path(record.directory)
    check_remote_models(spec, directory, before, after, [tuple(changes)], _addresses(view))


def _addresses(view: View) -> set[str]:
    """Of the workers and gateways that serve models."""
    workers = {worker.address for worker in view.workers.values()}
    return workers | {gateway.address for gateway in view.gateways.values()}
