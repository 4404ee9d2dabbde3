"""Reads and checks a fleet.yaml together with its repositories. Writes nothing.

The API and ``isochrone up`` call it before ``requests.fleet.apply_fleet``, which decides on the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isochrone.control.fleet.derived.locations import repositories_of
from isochrone.control.fleet.reading.catalog import (
    CatalogModel,
    access_problems,
    look_up,
    missing_files,
    missing_model_files,
)
from isochrone.control.fleet.reading.parsing import examine, fleet_of
from isochrone.control.fleet.reading.passwords import without_password
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import Assignment, FleetRecord
from isochrone.errors import IsochroneError
from isochrone.models.repository.digest import digest
from isochrone.models.repository.listings import Listings
from isochrone.models.repository.repository import Repository
from isochrone.models.sources.locations import Location, RepositoryUrl
from isochrone.secure.encryption.failures import EncryptionRefused
from isochrone.settings.problems import settings_error


@dataclass(frozen=True, slots=True)
class FleetFile:
    """A checked fleet.yaml, with what it leaves to the repositories."""

    fleet: Fleet
    text: str
    #: The directory that relative paths refer to.
    directory: str
    #: By model: the resolved version, and the stages of an ensemble.
    versions: Mapping[str, str]
    stages: Mapping[str, Sequence[str]]


def read_file(text: str, where: str, directory: Path, check: Callable[[Fleet], None] = lambda fleet: None) -> FleetFile:
    """Raises ``SettingsError`` with all that is wrong; ``where`` names the file in it.

    ``check`` may refuse the fleet before its directories are looked into. What is kept has no password.
    """
    examined = examine(text, where)
    fleet, problems = examined.fleet, list(examined.problems)
    models: Mapping[str, CatalogModel] = {}
    if fleet is not None:
        check(fleet)
        listings = Listings()
        models, missing = look_up(fleet, directory, listings)
        missing += [*missing_files(fleet, directory), *access_problems(fleet, directory)]
        missing += missing_model_files(fleet, directory, models, listings)
        problems += [each for each in missing if not examined.is_about_mistakes(each)]
    if problems or fleet is None:
        raise settings_error(problems, where, examined.lines)
    versions = {name: model.version for name, model in models.items()}
    stages = {name: each.stages for name, each in models.items()}
    return FleetFile(*without_password(fleet, text), str(directory), versions, stages)


def lost_versions(file: FleetFile, record: FleetRecord | None, served: Mapping[str, Assignment]) -> list[str]:
    """Committed versions that the new repositories of a pool do not have, each with the remedy.

    Workers are restarted with the new repositories one by one: without these versions each would serve less than
    before.
    """
    if record is None:
        return []
    before, was_in, directory = fleet_of(record.spec), Path(record.directory), Path(file.directory)
    found: list[str] = []
    for pool in file.fleet.pools:
        after = file.fleet.pools[pool]
        if pool not in before.pools or not (before.pools[pool].starts_workers and after.starts_workers):
            continue
        repositories = repositories_of(file.fleet, pool, directory)
        if repositories_of(before, pool, was_in) == repositories:
            continue
        for name, assignment in sorted(served.items()):
            if name in file.versions and pool in assignment.pools and pool in file.fleet.pools_of(name):
                found += _lost_in(repositories, name, assignment, pool)
    return found


def _lost_in(repositories: Sequence[Location], name: str, assignment: Assignment, pool: str) -> Iterator[str]:
    versions = {assignment.version: assignment.digest}
    if assignment.canary is not None:
        versions[assignment.canary.version] = assignment.canary.digest
    for version, expected in versions.items():
        problem = _problem(repositories, name, int(version), expected)
        if problem:
            yield (
                f"{name} version {version}, which pool {pool} serves, {problem}; put the served version there, or name "
                "the new repository in a pool of another name, which serves before this one goes"
            )


def _problem(repositories: Sequence[Location], name: str, version: int, expected: str) -> str:
    places = ", ".join(map(str, repositories))
    listings = Listings()
    try:
        for url in (place for place in repositories if isinstance(place, RepositoryUrl)):
            versions = listings.of(url).versions(name)
            if versions is not None:
                # Its digest needs its bytes: the workers fetch them, and report it before they serve it.
                return "" if version in versions else f"is not in {places}"
        paths = [place for place in repositories if isinstance(place, Path)]
        description = Repository(paths).read(name, versions=[version]).of_version(version)
        if version not in description.versions:
            return f"is not in {places}"
        found = digest(description.digested_config(version), description.stored(version))
    except EncryptionRefused:
        # Its digest needs its configuration, which may need its key: the workers report it before they serve it.
        return ""
    except IsochroneError as error:
        return f"cannot be read in {places} ({error})"
    return "" if found == expected or not expected else f"has other files or another config.pbtxt in {places}"
