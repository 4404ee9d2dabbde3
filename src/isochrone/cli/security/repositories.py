"""The models and versions of a repository on this machine, by the arguments of a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isochrone.errors import ConfigError, FlagError, NotFound
from isochrone.models.repository.layout import EXPECTED, is_model
from isochrone.models.repository.names import is_model_name, validate_model_name
from isochrone.models.repository.versions import find_versions, version_number
from isochrone.models.sources.locations import parse_location

ALL = "all"


def repository_directory(text: str) -> Path:
    place = parse_location(text)
    if not isinstance(place, Path):
        expected = "a directory of this machine (workers verify what they fetch; sign before the upload)"
        raise ConfigError("repository", text, expected, "a URL")
    if not place.is_dir() or is_model(place):
        given = "a model" if place.is_dir() else "no directory"
        raise ConfigError("repository", str(place), f"a directory of {EXPECTED}", given)
    return place


def model_directories(repository: Path, names: Sequence[str]) -> list[Path]:
    """Those of the named models, or of all."""
    for name in names:
        validate_model_name(name)
        if not (repository / name).is_dir():
            raise NotFound(f"{repository} has no model '{name}'")
    if names:
        return [repository / name for name in dict.fromkeys(names)]
    return sorted(each for each in repository.iterdir() if is_model_name(each.name) and each.is_dir())


def versions_of(directory: Path, wanted: str) -> tuple[int, ...]:
    """``wanted``: a number, "all", or "" for the newest."""
    present = find_versions(directory).present
    if not present:
        raise NotFound(f"{directory} has no version: a directory named by a positive integer, such as '1'")
    if not wanted:
        return present[-1:]
    if wanted == ALL:
        return present
    number = version_number(wanted)
    if number not in present:
        expected = f"one of {', '.join(map(str, present))}, or {ALL}"
        raise ConfigError("--version", directory.name, expected, repr(wanted))
    return (number,)


def target_version(given: str, version: int, wanted: str) -> int:
    """The number of ``--as-version``; without it, the version itself."""
    if not given:
        return version
    number = version_number(given)
    if number is None or wanted == ALL:
        expected = "a positive integer, with one --version"
        raise FlagError("--as-version", expected, f"--version {ALL}" if wanted == ALL else repr(given))
    return number
