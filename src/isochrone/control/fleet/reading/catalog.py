"""The models and versions in a fleet's repositories, as far as this machine can read them. Writes nothing.

When a file is applied, ``latest`` is resolved to a number here, once, so that it never means two things. The repository
of an outside server cannot be read: for models that only such servers have, the file must name a version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from tritonclient.grpc.model_config_pb2 import ModelConfig

from isochrone.control.fleet.derived.locations import absolute, location, repositories_of
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.model_spec import Model
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import FleetRecord
from isochrone.errors import ConfigError, InvalidArgument, IsochroneError
from isochrone.models.configuration.ensemble_graph import step_names
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.repository.config_files import CONFIG_FILE
from isochrone.models.repository.encrypted.names import either
from isochrone.models.repository.layout import model_files
from isochrone.models.repository.listings import Listings, RepositoryListing
from isochrone.models.repository.remote import empty_version
from isochrone.models.repository.signed.covered import signature_name
from isochrone.models.repository.versions import version_number
from isochrone.models.sources.failures import PackageMissing
from isochrone.models.sources.locations import Location, RepositoryUrl
from isochrone.secure.access.document import load_access
from isochrone.settings.lines import Lines, parse_yaml
from isochrone.settings.problems import Path as Path_
from isochrone.settings.problems import Problem, SettingsError, settings_error
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
    found, problems = look_up(fleet, directory, Listings())
    if problems:
        raise settings_error(problems, where, _lines(text))
    return found


def look_up(fleet: Fleet, directory: Path, listings: Listings) -> tuple[dict[str, CatalogModel], list[Problem]]:
    """The models and all problems."""
    found: dict[str, CatalogModel] = {}
    local = [pool for pool, spec in fleet.pools.items() if not spec.addresses]
    problems = [problem for pool in local for problem in _missing_repositories(fleet, pool, directory, listings)]
    waiting = list(fleet.models or _all_models(fleet, directory, listings))
    if not waiting and not problems:
        problems.append(_no_model(fleet, directory))
    while waiting:
        name = waiting.pop(0)
        if name in found:
            continue
        try:
            stages = _stages(fleet, name, directory, listings)
            version = _resolve_version(fleet, name, directory, listings)
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
    """Missing files of certificates, keys, tokens and access rules."""
    tls = fleet.security.tls
    named: list[tuple[Path_, str | None]] = [
        (("security", "tls", "cert"), tls.cert),
        (("security", "tls", "key"), tls.key),
        (("security", "tls", "ca"), tls.ca),
        (("security", "tls", "client_ca"), tls.client_ca),
        (("control", "token_file"), fleet.control.token_file),
        (("security", "access"), fleet.security.access),
        (("security", "key"), fleet.security.key),
        (("security", "audit", "key"), fleet.security.audit.key),
        *((("security", "signatures", "trust", i), file) for i, file in enumerate(fleet.security.signatures.trust)),
        *(
            (("security", "encryption", "keys", i), source.removeprefix("file:"))
            for i, source in enumerate(fleet.security.encryption.keys)
            if source.startswith("file:")
        ),
    ]
    return [
        Problem(path, f"a file at {absolute(text, directory)}", "nothing there")
        for path, text in named
        if text is not None and not absolute(text, directory).is_file()
    ]


def access_problems(fleet: Fleet, directory: Path) -> list[Problem]:
    """The errors of the access file: a process that starts with it would end at once."""
    text = fleet.security.access
    if text is None or not (path := absolute(text, directory)).is_file():
        return []
    try:
        load_access(path)
    except SettingsError as error:
        return [Problem(("security", "access"), "an access file without errors", str(each)) for each in error.errors]
    return []


def missing_model_files(
    fleet: Fleet, directory: Path, models: Mapping[str, CatalogModel], listings: Listings
) -> list[Problem]:
    """Versions whose directory lacks the file that the model's backend loads."""
    problems = []
    for name, model in models.items():
        key = ("models", name) if name in fleet.models else ("repository",)
        for listing in _holders(fleet, name, directory, listings):
            config = _configuration(listing, name)
            files = model_files(config) if config is not None else ()
            if files and not listing.has_any(name, model.version, either(files)):
                expected = f"{' or '.join(files)} in {listing.place}/{name}/{model.version}"
                problems.append(Problem(key, expected, "no such file"))
    return problems


def configuration_of(fleet: Fleet, model: str, directory: Path, listings: Listings) -> ModelConfig | None:
    """The configuration of a model in the repositories of its pools; None: it cannot be read from this machine."""
    try:
        holders = _holders(fleet, model, directory, listings)
    except (_Wrong, IsochroneError):
        return None
    return next((found for each in holders if (found := _configuration(each, model)) is not None), None)


def signatures_of(fleet: Fleet, model: str, version: str, directory: Path, listings: Listings) -> list[bytes | None]:
    """By repository of its pools that has the version: its signature, None where it has none. Empty: only outside
    servers have it, or it cannot be read from this machine."""
    number = int(version)
    try:
        holders = [
            each for each in _holders(fleet, model, directory, listings) if number in (each.versions(model) or ())
        ]
        return [each.read(model, signature_name(number)) for each in holders]
    except (_Wrong, IsochroneError):
        return []


def _configuration(listing: RepositoryListing, model: str) -> ModelConfig | None:
    """The configuration of a model; None: there is none, or another check reports its error."""
    try:
        content = listing.read(model, CONFIG_FILE)
        return None if content is None else parse_text(content, f"{listing.place}/{model}/{CONFIG_FILE}")[0]
    except IsochroneError:
        return None


def available_versions(fleet: Fleet, model: str, directory: Path) -> list[int]:
    """The versions that every pool of the model has, ascending; empty: only outside servers have it."""
    try:
        return _versions(fleet, model, directory, Listings())
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


def _resolve_version(fleet: Fleet, model: str, directory: Path, listings: Listings) -> str:
    """The version that the file asks for, which must exist."""
    wanted = fleet.of(model).version
    versions = _versions(fleet, model, directory, listings)
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
    return _stages(fleet, model, directory, Listings())


def _stages(fleet: Fleet, model: str, directory: Path, listings: Listings) -> tuple[str, ...]:
    if stages := fleet.of(model).stages:
        return stages
    for listing in _holders(fleet, model, directory, listings):
        try:
            content = listing.read(model, CONFIG_FILE)
            if content is not None:
                return step_names(parse_text(content, f"{listing.place}/{model}/{CONFIG_FILE}")[0])
        except ConfigError as error:
            raise _Wrong(Problem(("models", model), f"a right configuration: {error.expected}", str(error))) from None
        except IsochroneError as error:
            raise _Wrong(Problem(("models", model), "a configuration that can be read", str(error))) from None
    return ()


def _versions(fleet: Fleet, model: str, directory: Path, listings: Listings) -> list[int]:
    common: set[int] | None = None
    for listing in _holders(fleet, model, directory, listings):
        try:
            there = set(listing.versions(model) or ())
        except ConfigError as error:
            raise _Wrong(Problem(("models", model), "a readable directory", error.given)) from None
        if not there:
            expected = f"at least one version directory such as '1' in {listing.place}/{model}"
            if isinstance(listing.place, RepositoryUrl):
                expected += f" ({empty_version(model)})"
            raise _Wrong(Problem(("models", model), expected, "none"))
        common = there if common is None else common & there
    if common is not None and not common:
        raise _Wrong(Problem(("models", model), "a version that all its pools have", "none"))
    return sorted(common or ())


def _holders(fleet: Fleet, model: str, directory: Path, listings: Listings) -> list[RepositoryListing]:
    """The repositories of its pools that have the model; empty: only outside servers have it."""
    source = fleet.of(model).source
    if source is not None:
        place = location(source, directory)
        listing = listings.of(place.parent)
        if not _has(listing, model, ("models", model, "source")):
            raise _Wrong(Problem(("models", model, "source"), f"a directory at {place}", "nothing there"))
        return [listing]
    found: dict[Location, RepositoryListing] = {}
    for pool in fleet.pools_of(model):
        if fleet.pools[pool].addresses:
            continue
        for problem in _missing_repositories(fleet, pool, directory, listings):
            raise _Wrong(problem)
        at = ("pools", pool, "repository")
        there = [listings.of(place) for place in repositories_of(fleet, pool, directory)]
        holding = [listing for listing in there if _has(listing, model, at)]
        if not holding:
            raise _Wrong(_not_there(model, there))
        found.update((listing.place, listing) for listing in holding)
    return list(found.values())


def _has(listing: RepositoryListing, model: str, at: Path_) -> bool:
    try:
        return listing.versions(model) is not None
    except ConfigError as error:
        if isinstance(listing.place, Path):
            # The directory is there; that it cannot be read is reported where its versions are needed.
            return True
        raise _Wrong(_unlisted(at, listing.place, error)) from None
    except IsochroneError as error:
        raise _Wrong(_unlisted(at, listing.place, error)) from None


def _missing_repositories(fleet: Fleet, pool: str, directory: Path, listings: Listings) -> Iterator[Problem]:
    """Repositories that do not exist, or that cannot be listed."""
    own = fleet.pools[pool].repository
    key = ("pools", pool, "repository") if own else ("repository",)
    for place in (location(text, directory) for text in own or fleet.repository):
        try:
            if given := listings.of(place).missing():
                yield Problem(key, f"a directory at {place}", given)
        except IsochroneError as error:
            yield _unlisted(key, place, error)


def _unlisted(at: Path_, place: Location, error: IsochroneError) -> Problem:
    if isinstance(error, PackageMissing):
        return Problem(at, error.expected, error.given)
    given = error.given if isinstance(error, ConfigError) else str(error)
    return Problem(at, f"a repository that can be listed at {place}", given)


def _no_model(fleet: Fleet, directory: Path) -> Problem:
    paths = dict.fromkeys(path for pool in fleet.pools for path in _own_repositories(fleet, pool, directory))
    if not paths:
        return Problem(("models",), "at least one model, since its servers' own repositories cannot be read", "none")
    return Problem(("repository",), f"at least one model in {', '.join(map(str, paths))}", "none")


def _not_there(model: str, listings: Sequence[RepositoryListing]) -> Problem:
    known = sorted({name for listing in listings for name in listing.models()})
    expected = suggestion(model, known, "model") if known else "a model of the repository, which is empty"
    places = ", ".join(str(listing.place) for listing in listings)
    return Problem(("models", model), f"{expected} in {places}", f"'{model}'")


def _all_models(fleet: Fleet, directory: Path, listings: Listings) -> list[str]:
    """None of a repository that cannot be listed: that is reported."""
    places = dict.fromkeys(place for pool in fleet.pools_of("") for place in _own_repositories(fleet, pool, directory))
    found: set[str] = set()
    for place in places:
        try:
            found.update(listings.of(place).models())
        except IsochroneError:
            continue
    return sorted(found)


def _own_repositories(fleet: Fleet, pool: str, directory: Path) -> tuple[Location, ...]:
    return () if fleet.pools[pool].addresses else repositories_of(fleet, pool, directory)


def _lines(text: str) -> Lines | None:
    try:
        return parse_yaml(text)[1] if text else None
    except yaml.YAMLError:
        return None
