"""The models and versions in a fleet's repositories, as far as this machine can read them. Writes nothing.

When a file is applied, ``latest`` is resolved to a number here, once, so that it never means two things. The repository
of an outside server cannot be read: for models that only such servers have, the file must name a version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from tritonclient.grpc.model_config_pb2 import ModelConfig

from isochrone.control.fleet.model_spec import Model
from isochrone.control.fleet.processes import absolute, repositories_of
from isochrone.control.fleet.reading import fleet_of
from isochrone.control.fleet.spec import Fleet
from isochrone.control.state.records import FleetRecord
from isochrone.errors import ConfigError, InvalidArgument, IsochroneError
from isochrone.models.configuration.ensemble_graph import step_names
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.repository.layout import missing_model_file
from isochrone.models.repository.repository import CONFIG_FILE
from isochrone.models.repository.versions import find_versions, version_number
from isochrone.settings.lines import Lines, parse_yaml
from isochrone.settings.problems import Path as Path_
from isochrone.settings.problems import Problem, settings_error
from isochrone.suggestions import suggestion


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One model of the fleet, with what the file leaves to the repository."""

    name: str
    version: str
    pools: tuple[str, ...]
    #: Of an ensemble: the models its steps run.
    stages: tuple[str, ...]
    spec: Model


def catalog(fleet: Fleet, directory: Path, where: str = "fleet.yaml", text: str = "") -> dict[str, CatalogModel]:
    """Every model that the fleet serves, by name: those it names and their stages; none named: all there are.

    Raises ``SettingsError`` with all that is wrong; with the file's ``text``, by line.
    """
    found, problems = look_up(fleet, directory)
    if problems:
        raise settings_error(problems, where, _lines(text))
    return found


def look_up(fleet: Fleet, directory: Path) -> tuple[dict[str, CatalogModel], list[Problem]]:
    """The models and all problems."""
    found: dict[str, CatalogModel] = {}
    local = [pool for pool, spec in fleet.pools.items() if not spec.addresses]
    problems = [problem for pool in local for problem in _missing_repositories(fleet, pool, directory)]
    waiting = list(fleet.models or _all_models(fleet, directory))
    if not waiting and not problems:
        problems.append(_no_model(fleet, directory))
    while waiting:
        name = waiting.pop(0)
        if name in found:
            continue
        try:
            stages = stages_of(fleet, name, directory)
            version = resolve_version(fleet, name, directory)
        except _Wrong as wrong:
            problems.append(wrong.problem)
            continue
        found[name] = CatalogModel(name, version, fleet.pools_of(name), stages, fleet.of(name))
        waiting += stages
    problems += _parted_ensembles(found)
    return found, list(dict.fromkeys(problems))


def _parted_ensembles(models: Mapping[str, CatalogModel]) -> Iterator[Problem]:
    """Ensembles whose stages are not in each of their pools: all steps of a request run in one worker."""
    for name, model in models.items():
        for stage in model.stages:
            lacking = [pool for pool in model.pools if stage in models and pool not in models[stage].pools]
            if lacking:
                expected = f"pools that serve its stage {stage}, too ({', '.join(models[stage].pools)})"
                yield Problem(("models", name, "pools"), expected, ", ".join(lacking))


def missing_files(fleet: Fleet, directory: Path) -> list[Problem]:
    """Missing files of certificates, keys and tokens."""
    tls = fleet.security.tls
    named: list[tuple[Path_, str | None]] = [
        (("security", "tls", "cert"), tls.cert),
        (("security", "tls", "key"), tls.key),
        (("security", "tls", "client_ca"), tls.client_ca),
        *((("security", "tokens", name, "file"), token.file) for name, token in fleet.security.tokens.items()),
    ]
    return [
        Problem(path, f"a file at {absolute(text, directory)}", "nothing there")
        for path, text in named
        if text is not None and not absolute(text, directory).is_file()
    ]


def missing_model_files(fleet: Fleet, directory: Path, models: Mapping[str, CatalogModel]) -> list[Problem]:
    """Versions whose directory lacks the file that the model's backend loads."""
    problems = []
    for name, model in models.items():
        key = ("models", name) if name in fleet.models else ("repository",)
        for place in _directories(fleet, name, directory):
            config = _configuration(place)
            missing = missing_model_file(config, place / model.version) if config is not None else None
            if missing is not None:
                problems.append(Problem(key, f"{missing.expected} in {missing.where}", missing.given))
    return problems


def _configuration(place: Path) -> ModelConfig | None:
    """The configuration in a model's directory; None: there is none, or another check reports its error."""
    path = place / CONFIG_FILE
    try:
        return parse_text(path.read_bytes(), str(path))[0]
    except (OSError, ConfigError):
        return None


def available_versions(fleet: Fleet, model: str, directory: Path) -> list[int]:
    """The versions that every pool of the model has, ascending; empty: only outside servers have it."""
    try:
        return _versions(fleet, model, directory)
    except _Wrong as wrong:
        raise settings_error([wrong.problem], f"fleet {fleet.name}", None) from None


def check_versions(record: FleetRecord, changes: Mapping[str, str]) -> None:
    """Raise ``InvalidArgument`` for a version that is not in the repositories of the applied fleet.

    What cannot be seen from this machine (a model that only outside servers have, a repository elsewhere) is left to
    the workers, which report it when they load.
    """
    fleet = fleet_of(record.spec)
    for model, version in changes.items():
        number = version_number(version)
        if number is None:
            continue  # the request is rejected for its form
        try:
            present = available_versions(fleet, model, Path(record.directory))
        except IsochroneError:
            continue
        if present and number not in present:
            versions = ", ".join(map(str, present))
            raise InvalidArgument(
                f"changes.{model}: expected a version that is in its repository ({versions}), given '{version}'"
            )


class _Wrong(Exception):
    def __init__(self, problem: Problem) -> None:
        self.problem = problem


def resolve_version(fleet: Fleet, model: str, directory: Path) -> str:
    """The version that the file asks for, which must exist."""
    wanted = fleet.of(model).version
    versions = _versions(fleet, model, directory)
    at = ("models", model, "version") if model in fleet.models else ("defaults", "version")
    if wanted == "latest":
        if not versions:
            expected = "a number, since its servers' own repositories cannot be read"
            raise _Wrong(Problem(("models", model, "version"), expected, "latest"))
        return str(versions[-1])
    if versions and int(wanted) not in versions:
        there = ", ".join(map(str, versions))
        raise _Wrong(Problem(at, f"a version of {model} that is there ({there})", wanted))
    return wanted


def stages_of(fleet: Fleet, model: str, directory: Path) -> tuple[str, ...]:
    """The models that an ensemble's steps run, each once; of another model none."""
    if stages := fleet.of(model).stages:
        return stages
    for place in _directories(fleet, model, directory):
        path = place / CONFIG_FILE
        if path.is_file():
            try:
                config, _ = parse_text(path.read_bytes(), str(path))
            except ConfigError as error:
                raise _Wrong(
                    Problem(("models", model), f"a right configuration: {error.expected}", str(error))
                ) from None
            return step_names(config)
    return ()


def _versions(fleet: Fleet, model: str, directory: Path) -> list[int]:
    common: set[int] | None = None
    for place in _directories(fleet, model, directory):
        try:
            there = set(find_versions(place).present)
        except ConfigError as error:
            raise _Wrong(Problem(("models", model), "a readable directory", error.given)) from None
        if not there:
            expected = f"at least one version directory such as '1' in {place}"
            raise _Wrong(Problem(("models", model), expected, "none"))
        common = there if common is None else common & there
    if common is not None and not common:
        raise _Wrong(Problem(("models", model), "a version that all its pools have", "none"))
    return sorted(common or ())


def _directories(fleet: Fleet, model: str, directory: Path) -> list[Path]:
    """The model's directory in each repository of its pools; empty: only outside servers have it."""
    source = fleet.of(model).source
    if source is not None:
        place = absolute(source, directory)
        if not place.is_dir():
            raise _Wrong(Problem(("models", model, "source"), f"a directory at {place}", "nothing there"))
        return [place]
    found: dict[Path, None] = {}
    for pool in fleet.pools_of(model):
        if fleet.pools[pool].addresses:
            continue
        repositories = repositories_of(fleet, pool, directory)
        places = [path / model for path in repositories if (path / model).is_dir()]
        if not places:
            raise _Wrong(_not_there(fleet, model, pool, directory))
        found.update(dict.fromkeys(places))
    return list(found)


def _missing_repositories(fleet: Fleet, pool: str, directory: Path) -> Iterator[Problem]:
    """Repositories that do not exist."""
    own = fleet.pools[pool].repository
    for path in (absolute(text, directory) for text in own or fleet.repository):
        if not path.is_dir():
            key = ("pools", pool, "repository") if own else ("repository",)
            yield Problem(key, f"a directory at {path}", "a file" if path.exists() else "nothing there")


def _no_model(fleet: Fleet, directory: Path) -> Problem:
    paths = dict.fromkeys(path for pool in fleet.pools for path in _own_repositories(fleet, pool, directory))
    if not paths:
        return Problem(("models",), "at least one model, since its servers' own repositories cannot be read", "none")
    return Problem(("repository",), f"at least one model in {', '.join(map(str, paths))}", "none")


def _not_there(fleet: Fleet, model: str, pool: str, directory: Path) -> Problem:
    for problem in _missing_repositories(fleet, pool, directory):
        return problem
    repositories = repositories_of(fleet, pool, directory)
    known = sorted({name for path in repositories for name in _models_in(path)})
    expected = suggestion(model, known, "model") if known else "a model of the repository, which is empty"
    return Problem(("models", model), f"{expected} in {', '.join(map(str, repositories))}", f"'{model}'")


def _all_models(fleet: Fleet, directory: Path) -> list[str]:
    paths = dict.fromkeys(path for pool in fleet.pools_of("") for path in _own_repositories(fleet, pool, directory))
    return sorted({name for path in paths for name in _models_in(path)})


def _own_repositories(fleet: Fleet, pool: str, directory: Path) -> tuple[Path, ...]:
    return () if fleet.pools[pool].addresses else repositories_of(fleet, pool, directory)


def _models_in(path: Path) -> Iterator[str]:
    if path.is_dir():
        for entry in path.iterdir():
            if not entry.name.startswith(".") and entry.is_dir():
                yield entry.name


def _lines(text: str) -> Lines | None:
    try:
        return parse_yaml(text)[1] if text else None
    except yaml.YAMLError:
        return None
