"""The models in one directory of a repository, as a scan finds them: names, versions and fingerprints.

No configuration is read: a scan in poll mode must be cheap for thousands of models.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from isochrone.errors import ConfigError
from isochrone.models.repository.description import ModelEntry
from isochrone.models.repository.digest import regular_files
from isochrone.models.repository.links import check_links
from isochrone.models.repository.names import is_model_name
from isochrone.models.repository.versions import find_versions, version_number

_ATTEMPTS = 3


def scan_directory(path: Path, served_name: Callable[[str], str], *, links_stay: bool) -> Iterator[ModelEntry]:
    """The models of one repository. Raises ``ConfigError`` if it cannot be listed.

    ``served_name``: under which name the model of a directory is served. ``links_stay``: a model with a symbolic link
    out of the repository has a problem in place of everything else.
    """
    for directory in _model_directories(path):
        name = served_name(directory.name)
        entry = (_linked_away(name, directory, path) if links_stay else None) or _entry(name, directory)
        if entry is not None:
            yield entry


def _model_directories(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if is_model_name(entry.name) and entry.is_dir())
    except OSError as error:
        given = error.strerror or str(error)
        raise ConfigError("model repository", str(path), "a readable directory", given) from None


def _linked_away(name: str, directory: Path, root: Path) -> ModelEntry | None:
    """The entry of a model with a link that it may not have: its files are not read. None: it has none."""
    try:
        check_links(directory, root)
    except ConfigError as problem:
        return ModelEntry(name, directory, (), "", {}, problem)
    except OSError:  # it vanishes: ``_entry`` finds out
        pass
    return None


def _entry(name: str, directory: Path) -> ModelEntry | None:
    problem: ConfigError | None = None
    # Retried: a file may vanish between the listing and its stat, for example the temporary file of a copy.
    for _ in range(_ATTEMPTS):
        try:
            versions = find_versions(directory).present
            return ModelEntry(name, directory, versions, *_fingerprints(directory, versions))
        except ConfigError as error:
            problem = error
    # Removed since the listing. Any other problem is reported.
    if not os.path.isdir(directory):
        return None
    return ModelEntry(name, directory, (), "", {}, problem)


def _fingerprints(directory: Path, versions: Sequence[int]) -> tuple[str, dict[int, str]]:
    """Fingerprints of names, sizes, mtimes and inodes: cheap enough for every poll."""
    shared = blake2b(digest_size=16)
    hashes = {version: blake2b(digest_size=16) for version in versions}
    for relative, path in sorted(regular_files(directory)):
        first, slash, _ = relative.partition(b"/")
        version = version_number(first.decode("ascii", "replace")) if slash else None
        try:
            status = path.stat()
        except OSError as error:
            raise ConfigError(str(path), "file", "a readable file", error.strerror or str(error)) from None
        line = f"{status.st_size} {status.st_mtime_ns} {status.st_ino}".encode()
        target = hashes.get(version, shared) if version is not None else shared
        target.update(len(relative).to_bytes(4, "big") + relative + len(line).to_bytes(4, "big") + line)
    return shared.hexdigest(), {version: total.hexdigest() for version, total in hashes.items()}
