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
from hashlib import blake2b
from pathlib import Path

import structlog
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError, FetchFailed, InvalidArgument, IsochroneError, NotFound, NoVersion
from isochrone.models.configuration.completion import complete
from isochrone.models.configuration.ensemble_graph import step_names
from isochrone.models.configuration.json_config import parse_json
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.configuration.self_completion import SelfCompletion, completes_itself
from isochrone.models.configuration.validation import validate
from isochrone.models.repository.description import ModelDescription, ModelEntry
from isochrone.models.repository.digest import regular_files
from isochrone.models.repository.encrypted.copies import DecryptedVersion, DecryptedVersions, refuse_without_keys
from isochrone.models.repository.links import check_links
from isochrone.models.repository.names import is_model_name, validate_model_name
from isochrone.models.repository.namespaces import Namespaces, plain_name
from isochrone.models.repository.overrides import OverrideDirectory
from isochrone.models.repository.remote import RemoteModels, empty_version, split_versions
from isochrone.models.repository.signed.copies import VerifiedCopies
from isochrone.models.repository.signed.covered import CONFIG_FILE as CONFIG_FILE
from isochrone.models.repository.signed.covered import CONFIGS
from isochrone.models.repository.versions import (
    FoundVersions,
    find_versions,
    require_versions,
    version_number,
    versions_to_serve,
)
from isochrone.models.signature import Signature, signature_of
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.models.sources.files import StoredFile
from isochrone.models.sources.locations import Location, RepositoryUrl
from isochrone.models.sources.progress import Report
from isochrone.secure.signing.signed_version import SignatureRefused

log = structlog.get_logger(__name__)

_CONFIG_PARAMETER = "load parameter 'config'"
_VERSIONS_PARAMETER = "load parameter 'versions'"
_SCAN_ATTEMPTS = 3


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
        #: Each model's configs/NAME.pbtxt stands in for its config.pbtxt, where it has one.
        self._config_name = config_name
        self._assumed_batch_sizes = assumed_batch_sizes or {}
        self._self_completion = self_completion
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
            for name, directory in _model_directories(path):
                if self._namespaces is not None:
                    name = self._namespaces.served_name(name, path)
                entry = self._linked_away(name, directory, path) or _entry(name, directory)
                if entry is not None:
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
                return self._describe(name, overrides.model, config_json, overrides, versions)
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

    def _linked_away(self, name: str, directory: Path, root: Path) -> ModelEntry | None:
        """The entry of a model with a link that it may not have: its files are not read. None: it has none."""
        if self._links_stay:
            try:
                check_links(directory, root)
            except ConfigError as problem:
                return ModelEntry(name, directory, (), "", {}, problem)
            except OSError:  # it vanishes: ``_entry`` finds out
                pass
        return None

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
                config, _, where = self._configuration(directory, config_json)
                return versions_to_serve(config.version_policy, present, where)
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
            _rename(error, local, place)
            if isinstance(error, NoVersion) and not split_versions(files, name)[1] and self.steps(name, config_json):
                hint = f" ({empty_version(name)})"
                error.given, error.args = error.given + hint, (str(error) + hint,)
            raise

    def _described(
        self, name: str, directory: Path, config_json: str | None, versions: Sequence[int] | None
    ) -> ModelDescription:
        """The description of a model in its own directory or, where signatures are required, in a verified copy."""
        if self._verified is None:
            return self._describe(name, directory, config_json, None, versions)
        plain = name if self._namespaces is None else plain_name(name)
        chosen = self._chosen(name, directory, versions)
        found = self._verified.open(plain, directory, chosen, self._config_names())
        copied = found.copy.directory
        try:
            described = self._describe(name, copied, None, None, versions, of=directory)
        except ConfigError as error:
            _rename(error, str(copied), str(directory))
            raise
        return replace(
            described,
            stated_source=described.stated_source.replace(str(copied), str(directory)),
            provenance=found.provenance,
            private_copy=found.copy,
        )

    def _chosen(self, name: str, directory: Path, requested: Sequence[int] | None) -> Sequence[int]:
        """The versions to verify. Their configuration is not verified yet: the copy's decides which are served."""
        found = find_versions(directory)
        if requested is not None:
            require_versions(requested, found.present, _VERSIONS_PARAMETER)
            return requested
        config, _, where = self._configuration(directory, None)
        numbers = versions_to_serve(config.version_policy, found.present, where)
        if not numbers:
            raise _no_version(name, config, found, directory, where)
        return numbers

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

    def _config_names(self) -> list[str]:
        """Where a configuration may be in a model's directory; the first that exists counts."""
        return [*([f"{CONFIGS}/{self._config_name}.pbtxt"] if self._config_name else []), CONFIG_FILE]

    def _config_file(self, directory: Path) -> Path:
        files = [directory / name for name in self._config_names()]
        return next((file for file in files if os.path.lexists(file)), files[-1])

    def steps(self, name: str, config_json: str | None = None) -> tuple[str, ...]:
        """The models of an ensemble's steps, from its configuration alone.

        Empty if that cannot be read: ``read`` raises the reason.
        """
        try:
            if config_json is not None:
                return step_names(parse_json(config_json, _CONFIG_PARAMETER)[0])
            for directory in self._directories(name):
                file = self._config_file(directory)
                if file.is_file():
                    config = parse_text(file.read_bytes(), str(file))[0]
                    self._settle_names(config, name, directory)
                    return step_names(config)
            for remote in self._remote:
                found = remote.config(name, self._config_names())
                if found is not None:
                    return step_names(parse_text(*found)[0])
        except (OSError, ValueError, IsochroneError):
            pass
        return ()

    def _settle_names(self, config: model_config_pb2.ModelConfig, name: str, directory: Path) -> None:
        """With namespaces, replaces the names in a configuration by the names under which models are served."""
        if self._namespaces is not None:
            config.name = name
            self._namespaces.settle_steps(config, directory.parent)

    def _configuration(
        self, directory: Path, config_json: str | None
    ) -> tuple[model_config_pb2.ModelConfig, bool, str]:
        """The configuration as it is written, whether it states max_batch_size, and where it is."""
        where = _CONFIG_PARAMETER if config_json is not None else str(self._config_file(directory))
        if config_json is not None:
            return *parse_json(config_json, where), where
        if not os.path.lexists(where):
            return model_config_pb2.ModelConfig(), False, where
        # A broken link must not count as "no configuration", and reading a pipe would block.
        if not os.path.isfile(where):
            raise ConfigError(where, "file", "a regular file", "something else, or a broken link")
        return *parse_text(Path(where).read_bytes(), where), where

    def _describe(
        self,
        name: str,
        directory: Path,
        config_json: str | None,
        overrides: OverrideDirectory | None,
        requested: Sequence[int] | None,
        of: Path | None = None,
    ) -> ModelDescription:
        """``of``: the model's directory in its repository, if ``directory`` is a copy."""
        config, stated, where = self._configuration(directory, config_json)
        plain = name if self._namespaces is None else plain_name(name)
        if config.name not in ("", name, plain):
            raise ConfigError(where, "name", f"'{plain}', as the directory is called", f"'{config.name}'")
        self._settle_names(config, name, of or directory)
        found = find_versions(directory)
        if requested is not None:
            config.version_policy.specific.versions[:] = requested
            require_versions(requested, found.present, _VERSIONS_PARAMETER)
        numbers = versions_to_serve(config.version_policy, found.present, where)
        if not numbers:
            raise _no_version(name, config, found, directory, where)
        versions = {number: directory / str(number) for number in numbers}

        opened = self._decrypted(plain, versions, of or directory)
        versions.update((number, each.directory) for number, each in opened.items())

        def completed(of: Mapping[int, Path]) -> tuple[model_config_pb2.ModelConfig, Signature, tuple[str, ...]]:
            result, assumed = complete(
                config,
                directory,
                of,
                max_batch_size_stated=stated,
                where=where,
                assumed_batch_sizes=self._assumed_batch_sizes,
            )
            number = max(of)
            if completes_itself(result, of[number]):
                by_file[number] = result
                if self._self_completion is None:
                    # Only a server runs the model's code: without it, its tensors are not known.
                    return result, signature_of(result, {}), assumed
                result = self._self_completion(result, of[number])
                assumed = (*assumed, "completed by the model's auto_complete_config")
            validate(result, where)
            _check_initial_states(result, directory, where)
            return result, signature_of(result, _read_labels(result, directory, where)), assumed

        by_file: dict[int, model_config_pb2.ModelConfig] = {}
        try:
            newest, signature, assumed = completed(versions)
            differing = {}
            for number in numbers[:-1]:
                own, own_signature, _ = completed({number: versions[number]})
                if own != newest:
                    differing[number] = (own, own_signature)
        except ConfigError as error:
            for number, each in opened.items():
                _rename(error, str(each.directory), str(directory / str(number)))
            raise
        return ModelDescription(
            name=name,
            directory=directory,
            config=newest,
            signature=signature,
            assumed=assumed,
            versions=versions,
            ignored=found.ignored,
            overrides=overrides,
            differing=differing,
            stated=by_file,
            stated_source=where,
            decrypted=opened,
        )

    def _decrypted(self, model: str, versions: Mapping[int, Path], keys_at: Path) -> dict[int, DecryptedVersion]:
        """The plain files of encrypted versions. ``keys_at``: the model's directory in its repository."""
        found = {}
        for number, stored in versions.items():
            if self._decrypting is None:
                refuse_without_keys(model, number, stored)
            elif (each := self._decrypting.open(model, number, stored, keys_at)) is not None:
                found[number] = each
        return found


def _no_version(
    name: str, config: model_config_pb2.ModelConfig, found: FoundVersions, directory: Path, where: str
) -> NoVersion:
    if found.present:
        expected = f"one that is present (present: {', '.join(map(str, found.present))})"
        given = str(list(config.version_policy.specific.versions))
        return NoVersion(name, where, "version_policy.specific.versions", expected, given)
    given = f"none (ignored: {', '.join(found.ignored)})" if found.ignored else "none"
    expected = "at least one version directory named by a positive integer, such as '1'"
    return NoVersion(name, str(directory), "versions", expected, given)


def unknown_model(name: str) -> NotFound:
    """Clients match this message."""
    return NotFound(f"Request for unknown model: '{name}' is not found")


def _not_kept(place: str, error: OSError) -> FetchFailed:
    """The disk of the model cache failed: a full one, for example."""
    file = f" ({error.filename})" if error.filename else ""
    return FetchFailed(f"{place}: cannot be kept in the model cache: {error.strerror or error}{file}")


def _rename(error: ConfigError, local: str, place: str) -> None:
    """Names the place that people know in an error, not a copy."""
    error.where, error.args = error.where.replace(local, place), (str(error).replace(local, place),)


def _model_directories(path: Path) -> list[tuple[str, Path]]:
    try:
        return sorted((entry.name, entry) for entry in path.iterdir() if is_model_name(entry.name) and entry.is_dir())
    except OSError as error:
        given = error.strerror or str(error)
        raise ConfigError("model repository", str(path), "a readable directory", given) from None


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


def _entry(name: str, directory: Path) -> ModelEntry | None:
    problem: ConfigError | None = None
    # Retried: a file may vanish between the listing and its stat, for example the temporary file of a copy.
    for _ in range(_SCAN_ATTEMPTS):
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


def _check_initial_states(config: model_config_pb2.ModelConfig, directory: Path, where: str) -> None:
    for index, state in enumerate(config.sequence_batching.state):
        for initial in state.initial_state:
            if initial.data_file and not (directory / "initial_state" / initial.data_file).is_file():
                key = f"sequence_batching.state[{index}].initial_state[0].data_file"
                expected = f"a file in {directory / 'initial_state'}"
                raise ConfigError(where, key, expected, f"'{initial.data_file}', which is not there")


def _read_labels(config: model_config_pb2.ModelConfig, directory: Path, where: str) -> dict[str, tuple[str, ...]]:
    labels: dict[str, tuple[str, ...]] = {}
    for index, output in enumerate(config.output):
        if not output.label_filename:
            continue
        key = f"output[{index}].label_filename"
        path = directory / output.label_filename
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(where, key, f"a readable file at {path}", error.strerror or str(error)) from None
        except UnicodeDecodeError:
            raise ConfigError(where, key, "a file in UTF-8, one label a line", str(path)) from None
        labels[output.name] = tuple(line.rstrip("\r") for line in text.removesuffix("\n").split("\n"))
    return labels
