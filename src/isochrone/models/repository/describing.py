"""The description of a model, from a directory with its files: the configuration is read, completed and validated for
the versions that are served.

The directory may be the model's own, a verified copy, a fetched one or that of a load request's files: ``repository``
finds it. Nothing here writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError, NoVersion
from isochrone.models.configuration.completion import complete
from isochrone.models.configuration.ensemble_graph import step_names
from isochrone.models.configuration.json_config import parse_json
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.configuration.self_completion import SelfCompletion, completes_itself
from isochrone.models.configuration.validation import validate
from isochrone.models.repository.config_files import config_files
from isochrone.models.repository.description import ModelDescription
from isochrone.models.repository.encrypted.copies import DecryptedVersion, DecryptedVersions, refuse_without_keys
from isochrone.models.repository.namespaces import Namespaces, plain_name
from isochrone.models.repository.overrides import OverrideDirectory
from isochrone.models.repository.versions import (
    FoundVersions,
    find_versions,
    require_versions,
    versions_to_serve,
)
from isochrone.models.signature import Signature, signature_of

_CONFIG_PARAMETER = "load parameter 'config'"
_VERSIONS_PARAMETER = "load parameter 'versions'"


class Describer:
    """How models are described."""

    def __init__(
        self,
        config_name: str,
        assumed_batch_sizes: Mapping[str, int],
        namespaces: Namespaces | None,
        self_completion: SelfCompletion | None,
        decrypting: DecryptedVersions | None,
    ) -> None:
        #: Where a configuration may be in a model's directory; the first that exists counts.
        self.config_files = config_files(config_name)
        self._assumed_batch_sizes = assumed_batch_sizes
        self._namespaces = namespaces
        self._self_completion = self_completion
        self._decrypting = decrypting

    def steps(self, name: str, directory: Path) -> tuple[str, ...] | None:
        """The models of an ensemble's steps, by its configuration alone; None: there is none."""
        file = self._config_file(directory)
        if not file.is_file():
            return None
        config = parse_text(file.read_bytes(), str(file))[0]
        self._settle_names(config, name, directory)
        return step_names(config)

    def selected(self, directory: Path, config_json: str | None, present: Sequence[int]) -> Sequence[int]:
        """Which of these versions the configuration serves."""
        config, _, where = self._configuration(directory, config_json)
        return versions_to_serve(config.version_policy, present, where)

    def to_verify(self, name: str, directory: Path, requested: Sequence[int] | None) -> Sequence[int]:
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

    def _config_file(self, directory: Path) -> Path:
        files = [directory / name for name in self.config_files]
        return next((file for file in files if os.path.lexists(file)), files[-1])

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

    def describe(
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
                name_place(error, str(each.directory), str(directory / str(number)))
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


def steps_of(config_json: str) -> tuple[str, ...]:
    """The models of an ensemble's steps, by the configuration of a load request."""
    return step_names(parse_json(config_json, _CONFIG_PARAMETER)[0])


def name_place(error: ConfigError, local: str, place: str) -> None:
    """Names the place that people know in an error, not a copy."""
    error.where, error.args = error.where.replace(local, place), (str(error).replace(local, place),)


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
