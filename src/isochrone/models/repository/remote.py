"""The models of one repository in an object store or on a web server.

``scan`` lists them, ``fetch`` puts the files of the versions that are to be served into a directory of the cache, in
which ``repository`` reads them like any other. While the store is away, what was listed and fetched before is served
from the cache. Calls block: they run on threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import structlog

from isochrone.errors import FetchFailed
from isochrone.models.repository.description import ModelEntry
from isochrone.models.repository.names import is_model_name
from isochrone.models.repository.versions import version_number
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.models.sources.cache.trees import Tree
from isochrone.models.sources.checksums import CHECKSUMS, parse_checksums, with_checksums
from isochrone.models.sources.failures import CredentialsRefused
from isochrone.models.sources.files import StoredFile
from isochrone.models.sources.locations import RepositoryUrl
from isochrone.models.sources.objects import RemoteFiles
from isochrone.models.sources.progress import FetchProgress, Report

log = structlog.get_logger(__name__)

#: A file that another process evicts between its fetch and its use is fetched again.
_USE_ATTEMPTS = 3
#: A store that is away is not waited for again by every model that is loaded meanwhile.
_AWAY_SECONDS = 15.0

#: The versions to fetch, by the model's directory without its versions, and the versions that are there.
Choose = Callable[[Path, Sequence[int]], Collection[int]]


class RemoteModels:
    def __init__(self, url: RepositoryUrl, cache: ModelCache, stopping: threading.Event) -> None:
        self.url = url
        self._cache = cache
        self._remote = RemoteFiles(url, stopping)
        #: Whether the last scan found no file at all.
        self.is_empty = False
        #: Why it could not be listed, and until when that is assumed to last.
        self._away, self._away_until = "", 0.0

    def scan(self) -> dict[str, ModelEntry]:
        """Every model by name."""
        by_model: dict[str, list[StoredFile]] = {}
        files = self.files("")
        self.is_empty = not files
        for file in files:
            model, slash, _ = file.path.partition("/")
            if slash and is_model_name(model):
                by_model.setdefault(model, []).append(file)
        return {name: self._entry(name, files) for name, files in by_model.items()}

    def config(self, model: str, names: Iterable[str]) -> tuple[bytes, str] | None:
        """The first of these files in a model's folder, with its URL."""
        there = {file.path: file for file in self.files(model)}
        for path in (f"{model}/{name}" for name in names):
            if path in there:
                return self._read(there[path], model), f"{self.url}/{path}"
        return None

    def files(self, model: str) -> list[StoredFile]:
        """The files of a model, or of all; empty: there is no such model."""
        saved = self._cache.saved_listing(str(self.url), model)
        try:
            files = self._listed(model)
        except (FetchFailed, CredentialsRefused) as error:
            if saved is None:
                raise
            log.warning("the object store cannot be listed; what was listed last is used", error=str(error))
            return saved
        self._cache.save_listing(str(self.url), model, files)
        return files

    def _listed(self, model: str) -> list[StoredFile]:
        if time.monotonic() < self._away_until:
            raise FetchFailed(self._away)
        try:
            return self._remote.list(model)
        except FetchFailed as error:
            self._away, self._away_until = str(error), time.monotonic() + _AWAY_SECONDS
            raise

    def fetch(self, model: str, files: Sequence[StoredFile], choose: Choose, report: Report) -> Tree:
        """The model's directory with the versions that ``choose`` selects; other versions are empty folders."""
        shared, by_version = split_versions(files, model)
        folders = [str(version) for version in by_version]
        # In use until the versions are there, too.
        without_versions = self._tree(model, shared, folders, _quiet(model))
        try:
            chosen = choose(without_versions.directory, sorted(by_version))
            wanted = list(shared)
            for version in sorted(set(chosen) & set(by_version)):
                wanted += self._with_checksums(model, version, by_version[version])
            missing = sum(file.size for file in wanted if not self._cache.holds(str(self.url), file))
            progress = FetchProgress(model, missing, report)
            tree = self._tree(model, wanted, folders, progress)
            progress.end()
            return tree
        finally:
            without_versions.release()

    def _tree(self, model: str, files: Sequence[StoredFile], folders: Sequence[str], progress: FetchProgress) -> Tree:
        """A directory with these files, fetched where they are not here."""
        repository = str(self.url)
        by_name = {file.path.removeprefix(f"{model}/"): file for file in files}
        held = {name: self._cache.holds(repository, file) for name, file in by_name.items()}
        if all(held.values()) and (found := self._cache.find_tree(model, held, folders)) is not None:
            return found
        with self._cache.tree(model) as building:
            for folder in folders:
                building.add_folder(folder)
            # What is here is in use before room is made for the rest.
            linked = {name for name, sha256 in held.items() if sha256 and building.add(name, sha256)}
            rest = {name: file for name, file in by_name.items() if name not in linked}
            self._cache.make_room(repository, rest.values())
            for name, file in rest.items():
                for sha256 in self._fetched(file, progress):
                    if building.add(name, sha256):
                        break
            return building.finish()

    def _with_checksums(self, model: str, version: int, files: Sequence[StoredFile]) -> Sequence[StoredFile]:
        folder = f"{model}/{version}"
        stated = next((file for file in files if file.path == f"{folder}/{CHECKSUMS}"), None)
        if stated is None or stated.sha256:
            return files
        where = f"{self.url}/{stated.path}"
        return with_checksums(files, folder, parse_checksums(self._read(stated, model), where), where)

    def _read(self, file: StoredFile, model: str) -> bytes:
        """A small file, fetched if it is not here."""
        contents = (self._cache.read(sha256) for sha256 in self._fetched(file, _quiet(model)))
        return next(content for content in contents if content is not None)

    def _fetched(self, file: StoredFile, progress: FetchProgress) -> Iterator[str]:
        """The SHA-256 of a file that is here, again and again: another process may evict it before its use."""
        chunks = self._remote.reader(file).chunks

        def waiting() -> None:
            self._remote.check_stopping()
            progress.waits()

        for _ in range(_USE_ATTEMPTS):
            yield self._cache.fetch(str(self.url), file, chunks, waiting, progress.add)
        raise FetchFailed(f"{self.url}/{file.path} is evicted as soon as it is fetched: raise --model-cache-bytes")

    def _entry(self, model: str, files: Sequence[StoredFile]) -> ModelEntry:
        shared, by_version = split_versions(files, model)
        fingerprints = {version: _fingerprint(of_version) for version, of_version in by_version.items()}
        place = RepositoryUrl(self.url.scheme, self.url.host, f"{self.url.prefix}/{model}".lstrip("/"))
        return ModelEntry(model, place, tuple(sorted(by_version)), _fingerprint(shared), fingerprints)


def split_versions(files: Sequence[StoredFile], model: str) -> tuple[list[StoredFile], dict[int, list[StoredFile]]]:
    """The files outside versions, and those of each version.

    A store has no empty folders: an empty object with the name of a version stands for one, such as an ensemble's.
    """
    shared: list[StoredFile] = []
    by_version: dict[int, list[StoredFile]] = {}
    for file in files:
        first, slash, _ = file.path.removeprefix(f"{model}/").partition("/")
        version = version_number(first) if slash or not file.size else None
        if version is None:
            shared.append(file)
        else:
            by_version.setdefault(version, []).extend([file] if slash else [])
    return shared, by_version


def empty_version(model: str) -> str:
    """Why a version may be missing in a store, for errors."""
    return f"object stores have no empty folders: the version of an ensemble needs an object, such as {model}/1/.keep"


def _fingerprint(files: Sequence[StoredFile]) -> str:
    total = blake2b(digest_size=16)
    for file in files:
        line = f"{file.path}\n{file.size} {file.identity}".encode()
        total.update(len(line).to_bytes(4, "big") + line)
    return total.hexdigest()


def _quiet(model: str) -> FetchProgress:
    """For small files: nothing is reported."""
    return FetchProgress(model, 0, lambda text: None)
