"""The errors of a remote model repository that its listing and its configurations show. No model is fetched."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig

from isochrone.errors import ConfigError, IsochroneError
from isochrone.models.configuration.ensemble_graph import step_names
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.repository.config_files import CONFIG_FILE
from isochrone.models.repository.encrypted.names import either
from isochrone.models.repository.layout import model_files
from isochrone.models.repository.listings import RemoteListing
from isochrone.models.repository.remote import empty_version
from isochrone.models.repository.versions import versions_to_serve
from isochrone.models.sources.locations import RepositoryUrl


def check_remote(url: RepositoryUrl) -> tuple[dict[str, str], list[ConfigError]]:
    """All versions of every model, and the errors. Raises ``IsochroneError`` if the repository cannot be listed."""
    listing = RemoteListing(url)
    versions = {name: listing.versions(name) or () for name in sorted(listing.models())}
    problems: list[ConfigError] = []
    for name, present in versions.items():
        try:
            problems += _of_model(listing, name, present)
        except ConfigError as error:
            problems.append(error)
        except IsochroneError as error:
            problems.append(ConfigError(str(url), name, "a model that can be read", error.message))
    return {name: ", ".join(map(str, present)) for name, present in versions.items()}, problems


def _of_model(listing: RemoteListing, name: str, present: tuple[int, ...]) -> Iterator[ConfigError]:
    place = f"{listing.place}/{name}"
    where = f"{place}/{CONFIG_FILE}"
    content = listing.read(name, CONFIG_FILE)
    config = ModelConfig() if content is None else parse_text(content, where)[0]
    if config.name not in ("", name):
        yield ConfigError(where, "name", f"'{name}', as the directory is called", f"'{config.name}'")
    steps = step_names(config)
    if missing := [step for step in steps if step not in listing.models()]:
        expected = "steps of models that are there"
        yield ConfigError(where, "ensemble_scheduling", expected, f"{', '.join(missing)}, which is not")
    if not present:
        given = f"none ({empty_version(name)})" if steps else "none"
        yield ConfigError(place, "versions", "at least one version directory such as '1'", given)
        return
    numbers = versions_to_serve(config.version_policy, present, where)
    if not numbers:
        expected = f"one that is present (present: {', '.join(map(str, present))})"
        given = str(list(config.version_policy.specific.versions))
        yield ConfigError(where, "version_policy.specific.versions", expected, given)
    files = model_files(config) if content is not None else ()
    for number in numbers:
        if files and not listing.has_any(name, str(number), either(files)):
            yield ConfigError(f"{place}/{number}", "model file", " or ".join(files), "no such file")
