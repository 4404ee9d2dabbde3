"""Model repositories in Triton's layout: ``<model>/config.pbtxt`` and ``<model>/<version>/...``.

The catalog calls ``scan`` to find models and, in poll mode, changes, and ``read`` to get the validated description of a
model before loading it. Files may change or vanish at any moment: the error then names the file. A model of a remote
repository is fetched (``remote``) and then read like one on disk. Nothing here writes into a repository.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from isochrone.errors import ConfigError, FetchFailed, InvalidArgument, IsochroneError, NotFound, NoVersion
from isochrone.models.configuration.ensemble_graph import step_names
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.configuration.self_completion import SelfCompletion
from isochrone.models.repository.describing import Describer, name_place, steps_of
from isochrone.models.repository.description import ModelDescription, ModelEntry
from isochrone.models.repository.encrypted.copies import DecryptedVersions
from isochrone.models.repository.links import check_links
from isochrone.models.repository.names import is_model_name, validate_model_name
from isochrone.models.repository.namespaces import Namespaces, plain_name
from isochrone.models.repository.overrides import OverrideDirectory
from isochrone.models.repository.remote import RemoteModels, empty_version, split_versions
from isochrone.models.repository.scanning import scan_directory
from isochrone.models.repository.signed.copies import VerifiedCopies
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.models.sources.files import StoredFile
from isochrone.models.sources.locations import Location, RepositoryUrl
from isochrone.models.sources.progress import Report
from isochrone.secure.signing.signed_version import SignatureRefused

log = structlog.get_logger(__name__)


class Repository:
    """One or more repositories, as one set of names. ``cache`` is for those that are remote.

    ``verified``: only signed versions are described, from copies; None: nobody need sign them.
    ``decrypting``: opens encrypted versions; None: they are errors.
    """

    def __init__(
        self,
        places: Sequence[Location],
        config_name: str = "",
        assumed_batch_sizes: Mapping[str, int] | None = None,
        *,
        namespacing: bool = False,
        cache: ModelCache | None = None,
        self_completion: SelfCompletion | None = None,
        links_stay: bool = False,
        verified: VerifiedCopies | None = None,
        decrypting: DecryptedVersions | None = None,
    ) -> None:
        """``links_stay``: a model with a symbolic link out of its repository is an error."""
        self.places = tuple(places)
        self._paths = tuple(place for place in places if isinstance(place, Path))
        self._stopping = threading.Event()
        self._remote = [
            RemoteModels(place, _required(cache, place), self._stopping)
            for place in places
            if isinstance(place, RepositoryUrl)
        ]
        if namespacing and self._remote:
            expected = "directories of this machine, with --model-namespacing"
            raise ConfigError("model repository", str(self._remote[0].url), expected, "a URL")
        self._namespaces = Namespaces(self._paths) if namespacing else None
        self._describer = Describer(
            config_name, assumed_batch_sizes or {}, self._namespaces, self_completion, decrypting
        )
        self._links_stay = links_stay
        self._verified = verified
        self._decrypting = decrypting
        for path in self._paths:
            if not os.path.isdir(path):
                given = "a file" if path.exists() else "nothing there"
                raise ConfigError("model repository", str(path), "a directory", given)

    def scan(self) -> dict[str, ModelEntry]:
        """Every model by name. Raises if a repository cannot be listed: an empty result would unload all models."""
        entries: dict[str, ModelEntry] = {}
        for path in self._paths:
            for entry in scan_directory(path, partial(self._served_name, path), links_stay=self._links_stay):
                _add(entries, entry)
        for remote in self._remote:
            for entry in remote.scan().values():
                _add(entries, entry)
        return entries

    def missing(self) -> list[RepositoryUrl]:
        """The remote repositories without any file at the last scan, as if their directory did not exist."""
        return [remote.url for remote in self._remote if remote.is_empty]

    def close(self) -> None:
        """End the fetches that are under way."""
        self._stopping.set()

    def remove_copies(self) -> None:
        """Remove the verified and the decrypted files, when nothing is served any more."""
        for copies in (self._verified, self._decrypting):
            if copies is not None:
                copies.close()

    def read(
        self,
        name: str,
        config_json: str | None = None,
        files: Mapping[str, bytes] | None = None,
        versions: Sequence[int] | None = None,
        report: Report = lambda text: None,
    ) -> ModelDescription:
        """The validated description of one model. The files of a remote model are fetched first.

        Parameters of a load request replace parts of it: ``config_json`` the config.pbtxt; ``files``, with keys
        ``<version>/<name>`` (a leading ``file:`` is dropped), the directory; ``versions`` the ``version_policy``.
        ``report`` gets the progress of a fetch, on any thread.
        """
        validate_model_name(name)
        if self._verified is not None and (files or config_json is not None):
            raise SignatureRefused(
                f"model '{name}' is refused: nobody signed the configuration and files of a load request; sign a"
                " version in the repository, or serve without --require-signatures"
            )
        if files:
            if config_json is None:
                raise ConfigError("load request", "config", "a model configuration, since files are given", "none")
            overrides = OverrideDirectory(name, files)
            try:
                return self._describer.describe(name, overrides.model, config_json, overrides, versions)
            except BaseException:
                overrides.remove()
                raise
        found = self._directories(name)
        remote, failures = self._listed(name)
        if not found and not remote:
            raise failures[0] if failures else unknown_model(name)
        for failure in failures:
            log.warning("a repository could not be listed; the model is in another", model=name, error=str(failure))
        if len(found) + len(remote) > 1:
            raise _duplicate(name, [*found, *(f"{each.url}/{name}" for each, _ in remote)])
        for each, listed in remote:
            return self._fetch(each, listed, name, config_json, versions, report)
        try:
            if self._links_stay:
                check_links(found[0], self._root(found[0]))
            return self._described(name, found[0], config_json, versions)
        except (OSError, ConfigError) as error:
            if not os.path.isdir(found[0]):
                raise unknown_model(name) from None
            if isinstance(error, ConfigError):
                raise
            given = error.strerror or str(error)
            raise ConfigError(str(error.filename or found[0]), "file", "a readable file", given) from None

    def _served_name(self, path: Path, plain: str) -> str:
        return plain if self._namespaces is None else self._namespaces.served_name(plain, path)

    def _root(self, directory: Path) -> Path:
        """The repository that a model's directory is in, by the names of both."""
        return next(path for path in self._paths if path in directory.parents)

    def _listed(self, name: str) -> tuple[list[tuple[RemoteModels, list[StoredFile]]], list[IsochroneError]]:
        """The remote repositories with this model and its files there, and the errors of those that are away."""
        found: list[tuple[RemoteModels, list[StoredFile]]] = []
        failures: list[IsochroneError] = []
        for remote in self._remote:
            try:
                files = remote.files(name)
            except (FetchFailed, ConfigError) as error:
                failures.append(error)
            else:
                found += [(remote, files)] if files else []
        return found, failures

    def _fetch(
        self,
        remote: RemoteModels,
        files: Sequence[StoredFile],
        name: str,
        config_json: str | None,
        versions: Sequence[int] | None,
        report: Report,
    ) -> ModelDescription:
        def choose(directory: Path, present: Sequence[int]) -> Sequence[int]:
            if versions is not None:
                return versions
            try:
                return self._describer.selected(directory, config_json, present)
            except ConfigError:
                # It is raised when the model is described.
                return ()

        place = f"{remote.url}/{name}"
        try:
            tree = remote.fetch(name, files, choose, report)
        except OSError as error:
            raise _not_kept(place, error) from None
        # People know the URL, not the directory of the cache.
        local = str(tree.directory)
        try:
            described = self._described(name, tree.directory, config_json, versions)
            return replace(described, tree=tree, stated_source=described.stated_source.replace(local, place))
        except OSError as error:
            raise _not_kept(place, error) from None
        except ConfigError as error:
            name_place(error, local, place)
            if isinstance(error, NoVersion) and not split_versions(files, name)[1] and self.steps(name, config_json):
                hint = f" ({empty_version(name)})"
                error.given, error.args = error.given + hint, (str(error) + hint,)
            raise

    def _described(
        self, name: str, directory: Path, config_json: str | None, versions: Sequence[int] | None
    ) -> ModelDescription:
        """The description of a model in its own directory or, where signatures are required, in a verified copy."""
        if self._verified is None:
            return self._describer.describe(name, directory, config_json, None, versions)
        plain = name if self._namespaces is None else plain_name(name)
        chosen = self._describer.to_verify(name, directory, versions)
        found = self._verified.open(plain, directory, chosen, self._describer.config_files)
        copied = found.copy.directory
        try:
            described = self._describer.describe(name, copied, None, None, versions, of=directory)
        except ConfigError as error:
            name_place(error, str(copied), str(directory))
            raise
        return replace(
            described,
            stated_source=described.stated_source.replace(str(copied), str(directory)),
            provenance=found.provenance,
            private_copy=found.copy,
        )

    def _directories(self, name: str) -> list[Path]:
        if self._namespaces is not None:
            return self._namespaces.directories(name)
        return [path / name for path in self._paths if os.path.isdir(path / name)]

    def unknown(self, name: str) -> IsochroneError:
        """The error of a request for a model that is not served under this name."""
        if self._namespaces is not None and is_model_name(name):
            try:
                self._namespaces.directories(name)
            except InvalidArgument as error:
                return error
        return unknown_model(name)

    def steps(self, name: str, config_json: str | None = None) -> tuple[str, ...]:
        """The models of an ensemble's steps, from its configuration alone.

        Empty if that cannot be read: ``read`` raises the reason.
        """
        try:
            if config_json is not None:
                return steps_of(config_json)
            for directory in self._directories(name):
                found = self._describer.steps(name, directory)
                if found is not None:
                    return found
            for remote in self._remote:
                config = remote.config(name, self._describer.config_files)
                if config is not None:
                    return step_names(parse_text(*config)[0])
        except (OSError, ValueError, IsochroneError):
            pass
        return ()


def unknown_model(name: str) -> NotFound:
    """Clients match this message."""
    return NotFound(f"Request for unknown model: '{name}' is not found")


def _not_kept(place: str, error: OSError) -> FetchFailed:
    """The disk of the model cache failed: a full one, for example."""
    file = f" ({error.filename})" if error.filename else ""
    return FetchFailed(f"{place}: cannot be kept in the model cache: {error.strerror or error}{file}")


def _duplicate(name: str, directories: Sequence[object]) -> ConfigError:
    given = " and ".join(str(directory) for directory in directories)
    return ConfigError("model repository", name, "one directory of this name", given)


def _add(entries: dict[str, ModelEntry], entry: ModelEntry) -> None:
    """Add an entry; two of one name become one with a problem."""
    first = entries.get(entry.name)
    if first is not None:
        problem = _duplicate(entry.name, [first.directory, entry.directory])
        entry = ModelEntry(entry.name, first.directory, (), "", {}, problem)
    entries[entry.name] = entry


def _required(cache: ModelCache | None, url: RepositoryUrl) -> ModelCache:
    if cache is None:
        raise ConfigError("model repository", str(url), "a directory, since there is no model cache", "a URL")
    return cache
