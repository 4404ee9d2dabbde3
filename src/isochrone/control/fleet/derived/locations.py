"""The store and the model repositories of a fleet, independent of a process's working directory. Pure."""

from __future__ import annotations

import os
from pathlib import Path

from isochrone.control.fleet.settings.pool_bounds import at_largest
from isochrone.control.fleet.settings.process_names import worker_names
from isochrone.control.fleet.settings.sections import FleetSections
from isochrone.models.sources.locations import Location, is_url, parse_location


def store_url(fleet: FleetSections, directory: Path) -> str:
    """The store's URL with an absolute path."""
    scheme, _, rest = fleet.store.url.partition(":")
    return f"sqlite:{absolute(rest, directory)}" if scheme == "sqlite" else fleet.store.url


def repositories_of(fleet: FleetSections, pool: str, directory: Path) -> tuple[Location, ...]:
    """The model repositories of a pool's workers: its own or the fleet's, and those of its models' sources."""
    found = [location(text, directory) for text in fleet.pools[pool].repository or fleet.repository]
    for name, model in fleet.models.items():
        if model.source is not None and pool in fleet.pools_of(name):
            found.append(location(model.source, directory).parent)
    return tuple(dict.fromkeys(found))


def repositories_by_worker(fleet: FleetSections, directory: Path) -> dict[str, tuple[str, ...]]:
    """The repositories of every worker that is started here, at the largest size of its pool."""
    fleet = at_largest(fleet)
    return {
        name: tuple(map(str, repositories_of(fleet, pool, directory)))
        for pool in fleet.pools
        for name in worker_names(fleet, pool)
    }


def model_keys(fleet: FleetSections, directory: Path) -> list[str]:
    """Where workers get the keys of encrypted versions from, as their flag has it."""
    found = []
    for source in fleet.security.encryption.keys:
        kind, _, rest = source.partition(":")
        found.append(f"file:{absolute(rest, directory)}" if kind == "file" else source)
    return found


def location(text: str, directory: Path) -> Location:
    """A repository of the file: an absolute path, or a URL."""
    return parse_location(text) if is_url(text) else absolute(text, directory)


def absolute(path: str, directory: Path) -> Path:
    """A path of the file. Links are not resolved: a deployment may change their targets."""
    return Path(os.path.abspath(directory / Path(path).expanduser()))
