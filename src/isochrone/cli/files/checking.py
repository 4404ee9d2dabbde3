"""All errors of a fleet.yaml or a model repository at once. Reads files, writes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from isochrone.cli.files.remote_checking import check_remote
from isochrone.control.fleet.derived.locations import repositories_of
from isochrone.control.fleet.reading.file import read_file
from isochrone.control.fleet.reading.parsing import read_text
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.errors import ConfigError, InvalidArgument, IsochroneError
from isochrone.models.configuration.divided_models import MODELS, check_division, division_models, is_divided
from isochrone.models.configuration.ensemble_graph import step_names
from isochrone.models.configuration.ensemble_steps import check_steps
from isochrone.models.divisions import DIVISIONS_FILE, read_divisions
from isochrone.models.repository.config_files import CONFIG_FILE
from isochrone.models.repository.description import ModelDescription
from isochrone.models.repository.layout import EXPECTED, is_model, missing_model_file
from isochrone.models.repository.repository import Repository
from isochrone.models.sources.locations import RepositoryUrl, parse_location
from isochrone.secure.encryption.failures import NoKey
from isochrone.settings.problems import SettingsError

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2

_ONE_MODEL = "at least one model in Triton's layout, such as detector/1/model.onnx"


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check. ``models``: name to version, or to all versions as text."""

    kind: str
    name: str
    models: dict[str, str]
    problems: tuple[ConfigError, ...]


def check(text: str) -> Checked:
    """Check a model repository if the text is a URL or the path of a directory, else a fleet.yaml."""
    try:
        place = parse_location(text)
    except ConfigError as error:
        return Checked("repository", text, {}, (error,))
    if isinstance(place, RepositoryUrl):
        return _remote(place)
    return _repository(place) if place.is_dir() else _fleet(place)


def _fleet(path: Path) -> Checked:
    directory = Path(os.path.abspath(path)).parent
    try:
        file = read_file(read_text(path), str(path), directory)
    except SettingsError as error:
        return Checked("fleet", str(path), {}, error.errors)
    fleet, versions = file.fleet, dict(file.versions)
    problems: list[ConfigError] = []
    for paths, names in _by_repository(fleet, directory, versions).items():
        problems += _of_models(Repository(paths), names)
    return Checked("fleet", fleet.name, versions, tuple(_once(problems)))


def _by_repository(
    fleet: Fleet, directory: Path, versions: Mapping[str, str]
) -> dict[tuple[Path, ...], dict[str, int]]:
    """The models that workers load, with their versions, by the repositories that they load from.

    Pools with a remote repository are left out: their models are checked by listing, and not fetched.
    """
    found: dict[tuple[Path, ...], dict[str, int]] = {}
    for name, version in versions.items():
        for pool in fleet.pools_of(name):
            places = repositories_of(fleet, pool, directory)
            paths = tuple(place for place in places if isinstance(place, Path))
            if not fleet.pools[pool].addresses and len(paths) == len(places):
                found.setdefault(paths, {})[name] = int(version)
    return found


def _repository(path: Path) -> Checked:
    repository = Repository([path])
    if is_model(path):
        given = f"a model's own directory; give its parent, {_parent(path)}"
        return Checked("repository", str(path), {}, (ConfigError(str(path), "models", EXPECTED, given),))
    try:
        entries = repository.scan()
    except ConfigError as error:
        return Checked("repository", str(path), {}, (error,))
    if not entries:
        return Checked("repository", str(path), {}, (ConfigError(str(path), "models", _ONE_MODEL, "none"),))
    problems = [entry.problem for entry in entries.values() if entry.problem is not None]
    problems += _of_models(repository, dict.fromkeys(name for name, each in entries.items() if each.problem is None))
    versions = {name: ", ".join(map(str, entry.versions)) for name, entry in entries.items()}
    return Checked("repository", str(path), versions, tuple(_once(problems)))


def _remote(url: RepositoryUrl) -> Checked:
    try:
        versions, problems = check_remote(url)
    except ConfigError as error:
        return Checked("repository", str(url), {}, (error,))
    except IsochroneError as error:
        problem = ConfigError("model repository", str(url), "a repository that can be listed", error.message)
        return Checked("repository", str(url), {}, (problem,))
    if not versions:
        return Checked("repository", str(url), {}, (ConfigError(str(url), "models", _ONE_MODEL, "none"),))
    return Checked("repository", str(url), versions, tuple(problems))


def _parent(path: Path) -> Path:
    return Path(os.path.abspath(path)).parent


def _of_models(repository: Repository, models: dict[str, int] | dict[str, None]) -> list[ConfigError]:
    """The errors that a worker would report before it loads the models: configurations, versions, files, ensembles."""
    problems = []
    read: dict[str, ModelDescription] = {}
    for name, version in models.items():
        try:
            read[name] = repository.read(name, versions=None if version is None else (version,))
        except ConfigError as error:
            problems.append(error)
        except NoKey:
            # Only a worker with its key can say more.
            continue
        except IsochroneError as error:
            places = ", ".join(map(str, repository.places))
            problems.append(ConfigError(places, name, "a model that can be read", error.message))
    problems += [problem for each in read.values() if (problem := _of_steps(each, read, models)) is not None]
    problems += [problem for each in read.values() for problem in _of_files(each)]
    for description in read.values():
        description.release()
    return problems


def _of_files(description: ModelDescription) -> Iterator[ConfigError]:
    for number, place in description.versions.items():
        problem = missing_model_file(description.of_version(number).config, place)
        if problem is not None:
            yield problem


def _of_steps(
    ensemble: ModelDescription, read: Mapping[str, ModelDescription], models: Iterable[str]
) -> ConfigError | None:
    """The error of an ensemble's steps, if any. A step that cannot be read has an error of its own."""
    config, where = ensemble.config, str(ensemble.directory / CONFIG_FILE)
    steps = step_names(config)
    if missing := [name for name in steps if name not in models]:
        expected = "steps of models that are there"
        return ConfigError(where, "ensemble_scheduling", expected, f"{', '.join(missing)}, which is not")
    if not steps or any(name not in read for name in steps):
        return None
    if is_divided(config):
        return _of_divisions(ensemble, read)
    try:
        check_steps(config, [read[step.model_name].config for step in config.ensemble_scheduling.step])
    except InvalidArgument as error:
        return ConfigError(where, "ensemble_scheduling", "steps that fit together", error.message)
    return None


def _of_divisions(divided: ModelDescription, read: Mapping[str, ModelDescription]) -> ConfigError | None:
    config, where = divided.config, str(divided.directory / CONFIG_FILE)
    try:
        for name in division_models(config):
            check_division(config, read[name].config, _steps_below(name, read))
        for directory in divided.versions.values():
            file = directory / DIVISIONS_FILE
            if file.is_file():  # otherwise an error of its own
                read_divisions(file.read_bytes(), str(file))
    except ConfigError as error:
        return error
    except InvalidArgument as error:
        return ConfigError(where, f'parameters["{MODELS}"]', "divisions that fit the model", error.message)
    return None


def _steps_below(name: str, read: Mapping[str, ModelDescription]) -> list[model_config_pb2.ModelConfig]:
    """The configurations of all models that an ensemble runs; those that cannot be read have errors of their own."""
    found: dict[str, model_config_pb2.ModelConfig] = {}
    ahead = list(step_names(read[name].config))
    while ahead:
        step = ahead.pop()
        if step in read and step not in found:
            found[step] = read[step].config
            ahead += step_names(read[step].config)
    return list(found.values())


def _once(problems: Iterable[ConfigError]) -> list[ConfigError]:
    """Without duplicates: two pools may load the same model."""
    return list({str(problem): problem for problem in problems}.values())
