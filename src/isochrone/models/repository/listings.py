"""What a repository holds, without its models' bytes: names, versions, configurations.

The control plane looks versions up with it, on a machine that may never load them: of a remote repository it lists the
files and reads the configurations, and nothing is fetched into a cache.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from isochrone.errors import IsochroneError, NotFound
from isochrone.models.repository.remote import listed_by_model, split_versions
from isochrone.models.repository.versions import find_versions
from isochrone.models.sources.failures import StrayKey
from isochrone.models.sources.files import StoredFile
from isochrone.models.sources.locations import Location, RepositoryUrl
from isochrone.models.sources.objects import RemoteFiles


class RepositoryListing(Protocol):
    """Methods raise ``IsochroneError`` for what cannot be read."""

    place: Location

    def missing(self) -> str:
        """What is in its place, if there is no repository; "": there is one."""
        ...

    def models(self) -> list[str]: ...

    def versions(self, model: str) -> tuple[int, ...] | None:
        """Ascending; None: there is no such model."""
        ...

    def read(self, model: str, name: str) -> bytes | None:
        """A file in a model's directory; None: it cannot be read."""
        ...

    def has_any(self, model: str, version: str, names: Collection[str]) -> bool:
        """Whether a version has one of these files."""
        ...


class DirectoryListing:
    """A repository of this machine."""

    def __init__(self, place: Path) -> None:
        self.place: Location = place
        self._path = place

    def missing(self) -> str:
        if self._path.is_dir():
            return ""
        return "a file" if self._path.exists() else "nothing there"

    def models(self) -> list[str]:
        if not self._path.is_dir():
            return []
        return [entry.name for entry in self._path.iterdir() if not entry.name.startswith(".") and entry.is_dir()]

    def versions(self, model: str) -> tuple[int, ...] | None:
        directory = self._path / model
        return find_versions(directory).present if directory.is_dir() else None

    def read(self, model: str, name: str) -> bytes | None:
        try:
            return (self._path / model / name).read_bytes()
        except OSError:
            return None

    def has_any(self, model: str, version: str, names: Collection[str]) -> bool:
        return any((self._path / model / version / name).exists() for name in names)


class RemoteListing:
    """A repository in an object store or on a web server, as it was when it was first asked."""

    def __init__(self, place: RepositoryUrl) -> None:
        self.place: Location = place
        self._remote = RemoteFiles(place)
        self._listed: dict[str, list[StoredFile] | StrayKey] | None = None
        #: Kept, so that a store that is away is waited for once.
        self._failure: IsochroneError | None = None

    def missing(self) -> str:
        self._models()
        return ""

    def models(self) -> list[str]:
        return list(self._models())

    def versions(self, model: str) -> tuple[int, ...] | None:
        files = self._files(model)
        return tuple(sorted(split_versions(files, model)[1])) if files else None

    def read(self, model: str, name: str) -> bytes | None:
        path = f"{model}/{name}"
        if not any(file.path == path for file in self._files(model)):
            return None
        try:
            return self._remote.read(path)
        except NotFound:
            return None

    def has_any(self, model: str, version: str, names: Collection[str]) -> bool:
        paths = {f"{model}/{version}/{name}" for name in names}
        # The model file of some backends is a folder.
        return any(
            file.path in paths or any(file.path.startswith(f"{path}/") for path in paths) for file in self._files(model)
        )

    def _files(self, model: str) -> list[StoredFile]:
        """Empty: there is no such model."""
        files = self._models().get(model, [])
        if isinstance(files, StrayKey):
            raise files
        return files

    def _models(self) -> dict[str, list[StoredFile] | StrayKey]:
        if self._failure is not None:
            raise self._failure
        if self._listed is None:
            try:
                self._listed = listed_by_model(self._remote, self._remote.list)
            except IsochroneError as error:
                self._failure = error
                raise
        return self._listed


class Listings:
    """The listings of several repositories, each made once."""

    def __init__(self) -> None:
        self._made: dict[Location, RepositoryListing] = {}

    def of(self, place: Location) -> RepositoryListing:
        if place not in self._made:
            self._made[place] = RemoteListing(place) if isinstance(place, RepositoryUrl) else DirectoryListing(place)
        return self._made[place]
