"""Model repositories on disk, in Triton's layout: ``<model>/config.pbtxt`` and ``<model>/<version>/...``.

The catalog calls ``scan`` to find models and, in poll mode, changes, and ``read`` to get the validated description of a
model before loading it. Files may change or vanish at any moment: the error then names the file. Nothing here writes
into a repository.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError, InvalidArgument, IsochroneError, NotFound, NoVersion
from isochrone.models.configuration.completion import complete
from isochrone.models.configuration.ensemble_graph import step_names
from isochrone.models.configuration.json_config import parse_json
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.configuration.validation import validate
from isochrone.models.repository.digest import regular_files
from isochrone.models.repository.namespaces import Namespaces, plain_name
from isochrone.models.repository.overrides import OverrideDirectory
from isochrone.models.repository.versions import (
    FoundVersions,
    find_versions,
    require_versions,
    version_number,
    versions_to_serve,
)
from isochrone.models.signature import Signature, signature_of

CONFIG_FILE = "config.pbtxt"
#: Holds the configurations that ``--model-config-name`` chooses among.
_CONFIGS = "configs"
_CONFIG_PARAMETER = "load parameter 'config'"
_VERSIONS_PARAMETER = "load parameter 'versions'"
_LONGEST_NAME = 255
_SCAN_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that a scan found. Fingerprints stay equal as long as no file changes."""

    name: str
    directory: Path
    versions: tuple[int, ...]
    config_fingerprint: str
    """Of everything in the model's directory outside its versions: config.pbtxt, labels, warm-up data."""
    version_fingerprints: Mapping[int, str]
    problem: ConfigError | None = None
    """Why the scan could not read this model. The other fields are then meaningless, and loaded versions stay."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The description of a model before it is loaded."""

    name: str
    directory: Path
    config: model_config_pb2.ModelConfig
    """Completed and validated, for the newest version (see ``of_version``). Must not be changed."""
    signature: Signature
    assumed: tuple[str, ...]
    """Sentences for the log about the assumptions of completion."""
    versions: Mapping[int, Path]
    """The versions to serve, ascending, each with its directory."""
    ignored: tuple[str, ...]
    """Entries of the directory that look like versions but are none."""
    overrides: OverrideDirectory | None = None
    """The files of a load request; removed with the description, or by ``release``."""
    differing: Mapping[int, tuple[model_config_pb2.ModelConfig, Signature]] = field(default_factory=dict)
    """Versions whose completed configuration differs from that of the newest version."""

    def of_version(self, version: int) -> ModelDescription:
        """The description of one version, independent of the other versions."""
        if version not in self.differing:
            return self
        config, signature = self.differing[version]
        return replace(self, config=config, signature=signature)

    def release(self) -> None:
        """Remove files that were written for this description alone; nothing of the repository is touched."""
        if self.overrides is not None:
            self.overrides.remove()


class Repository:
    """One or more directories of models, as one set of names."""

    def __init__(
        self,
        paths: Sequence[Path],
        config_name: str = "",
        assumed_batch_sizes: Mapping[str, int] | None = None,
        *,
        namespacing: bool = False,
    ) -> None:
        self.paths = tuple(paths)
        self._namespaces = Namespaces(self.paths) if namespacing else None
        #: Each model's configs/NAME.pbtxt stands in for its config.pbtxt, where it has one.
        self._config_name = config_name
        self._assumed_batch_sizes = assumed_batch_sizes or {}
        for path in self.paths:
            if not os.path.isdir(path):
                given = "a file" if path.exists() else "nothing there"
                raise ConfigError("model repository", str(path), "a directory", given)

    def scan(self) -> dict[str, ModelEntry]:
        """Every model by name. Raises if a repository cannot be listed: an empty result would unload all models."""
        entries: dict[str, ModelEntry] = {}
        for path in self.paths:
            for name, directory in _model_directories(path):
                if self._namespaces is not None:
                    name = self._namespaces.served_name(name, path)
                if name in entries:
                    first = entries[name]
                    problem = _duplicate(name, [first.directory, directory])
                    entries[name] = ModelEntry(name, first.directory, (), "", {}, problem)
                    continue
                entry = _entry(name, directory)
                if entry is not None:
                    entries[name] = entry
        return entries

    def read(
        self,
        name: str,
        config_json: str | None = None,
        files: Mapping[str, bytes] | None = None,
        versions: Sequence[int] | None = None,
    ) -> ModelDescription:
        """The validated description of one model.

        Parameters of a load request replace parts of it: ``config_json`` the config.pbtxt; ``files``, with keys
        ``<version>/<name>`` (a leading ``file:`` is dropped), the directory; ``versions`` the ``version_policy``.
        """
        validate_model_name(name)
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
        if not found:
            raise unknown_model(name)
        if len(found) > 1:
            raise _duplicate(name, found)
        try:
            return self._describe(name, found[0], config_json, None, versions)
        except (OSError, ConfigError) as error:
            if not os.path.isdir(found[0]):
                raise unknown_model(name) from None
            if isinstance(error, ConfigError):
                raise
            given = error.strerror or str(error)
            raise ConfigError(str(error.filename or found[0]), "file", "a readable file", given) from None

    def _directories(self, name: str) -> list[Path]:
        if self._namespaces is not None:
            return self._namespaces.directories(name)
        return [path / name for path in self.paths if os.path.isdir(path / name)]

    def unknown(self, name: str) -> IsochroneError:
        """The error of a request for a model that is not served under this name."""
        if self._namespaces is not None and _is_model_name(name):
            try:
                self._namespaces.directories(name)
            except InvalidArgument as error:
                return error
        return unknown_model(name)

    def _config_file(self, directory: Path) -> Path:
        named = directory / _CONFIGS / f"{self._config_name}.pbtxt"
        return named if self._config_name and os.path.lexists(named) else directory / CONFIG_FILE

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
        except (OSError, ValueError, InvalidArgument):
            pass
        return ()

    def _settle_names(self, config: model_config_pb2.ModelConfig, name: str, directory: Path) -> None:
        """With namespaces, replaces the names in a configuration by the names under which models are served."""
        if self._namespaces is not None:
            config.name = name
            self._namespaces.settle_steps(config, directory.parent)

    def _describe(
        self,
        name: str,
        directory: Path,
        config_json: str | None,
        overrides: OverrideDirectory | None,
        requested: Sequence[int] | None,
    ) -> ModelDescription:
        where = _CONFIG_PARAMETER if config_json is not None else str(self._config_file(directory))
        if config_json is not None:
            config, stated = parse_json(config_json, where)
        elif os.path.lexists(where):
            # A broken link must not count as "no configuration", and reading a pipe would block.
            if not os.path.isfile(where):
                raise ConfigError(where, "file", "a regular file", "something else, or a broken link")
            config, stated = parse_text(Path(where).read_bytes(), where)
        else:
            config, stated = model_config_pb2.ModelConfig(), False
        plain = name if self._namespaces is None else plain_name(name)
        if config.name not in ("", name, plain):
            raise ConfigError(where, "name", f"'{plain}', as the directory is called", f"'{config.name}'")
        self._settle_names(config, name, directory)
        found = find_versions(directory)
        if requested is not None:
            config.version_policy.specific.versions[:] = requested
            require_versions(requested, found.present, _VERSIONS_PARAMETER)
        numbers = versions_to_serve(config.version_policy, found.present, where)
        if not numbers:
            raise _no_version(name, config, found, directory, where)
        versions = {number: directory / str(number) for number in numbers}

        def completed(of: Mapping[int, Path]) -> tuple[model_config_pb2.ModelConfig, Signature, tuple[str, ...]]:
            result, assumed = complete(
                config,
                directory,
                of,
                max_batch_size_stated=stated,
                where=where,
                assumed_batch_sizes=self._assumed_batch_sizes,
            )
            validate(result, where)
            _check_initial_states(result, directory, where)
            return result, signature_of(result, _read_labels(result, directory, where)), assumed

        newest, signature, assumed = completed(versions)
        differing = {}
        for number in numbers[:-1]:
            own, own_signature, _ = completed({number: versions[number]})
            if own != newest:
                differing[number] = (own, own_signature)
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
        )


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


def validate_model_name(name: str) -> None:
    """Rejects a name that is not a plain directory name."""
    if _is_model_name(name):
        return
    raise InvalidArgument(
        "model name: expected one directory name of at most 255 bytes, without '/', '\\' or control"
        f" characters and not starting with '.', given {name[:_LONGEST_NAME]!r}"
    )


def _is_model_name(name: str) -> bool:
    if not name or name.startswith(".") or "/" in name or "\\" in name:
        return False
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return False
    return length <= _LONGEST_NAME and name.isprintable()


def _model_directories(path: Path) -> list[tuple[str, Path]]:
    try:
        return sorted((entry.name, entry) for entry in path.iterdir() if _is_model_name(entry.name) and entry.is_dir())
    except OSError as error:
        given = error.strerror or str(error)
        raise ConfigError("model repository", str(path), "a readable directory", given) from None


def _duplicate(name: str, directories: Sequence[Path]) -> ConfigError:
    given = " and ".join(str(directory) for directory in directories)
    return ConfigError("model repository", name, "one directory of this name", given)


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
