"""The models that an ensemble depends on: load order, and whether they are served. Pure.

The catalog calls this before it loads a model, and again after each change. Messages are Triton's, since its users
match them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from isochrone.errors import InvalidArgument
from isochrone.models.configuration.divided_models import check_division, division_models, is_divided
from isochrone.models.configuration.ensemble_graph import step_names
from isochrone.models.configuration.ensemble_steps import check_steps

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2

    from isochrone.worker.served_version import ServedVersion

#: The version that serves (model, version), or None; version "" is the newest.
Serves = Callable[[tuple[str, str]], "ServedVersion | None"]
#: The error of a model's failed load; None: it was not loaded, or does not exist.
Failure = Callable[[str], str | None]


def load_order(
    names: Iterable[str], steps: Callable[[str], Sequence[str]]
) -> tuple[dict[str, tuple[str, ...]], dict[str, InvalidArgument]]:
    """The models to load, each after the models of its steps; and the errors of models that depend on themselves."""
    order: dict[str, tuple[str, ...]] = {}
    circular: dict[str, InvalidArgument] = {}
    for name in names:
        # Depth first, without recursion: configurations may nest deeply.
        path: dict[str, tuple[str, ...]] = {} if name in order else {name: tuple(steps(name))}
        ahead = [list(below) for below in path.values()]
        while path:
            if not ahead[-1]:
                ahead.pop()
                finished, below = path.popitem()
                order[finished] = below
                continue
            step = ahead[-1].pop(0)
            if step in path:
                circle = list(path)[list(path).index(step) :]
                for runner, member in zip(circle, [*circle[1:], circle[0]], strict=True):
                    circular[member] = InvalidArgument(
                        f"circular dependency between ensembles: {member} -> ... -> {runner} -> {member}"
                    )
            elif step not in order:
                path[step] = tuple(steps(step))
                ahead.append(list(path[step]))
    return order, circular


def resolve_steps(config: model_config_pb2.ModelConfig, serves: Serves, failure: Failure) -> list[ServedVersion]:
    """The served version of each step; raises ``InvalidArgument`` if one is missing."""
    names = step_names(config)
    absent = [name for name in names if serves((name, "")) is None]
    missing = [name for name in absent if failure(name) is None]
    if missing:
        raise InvalidArgument(
            f"ensemble {config.name} contains models that are not available or ambiguous: {', '.join(missing)}"
        )
    if absent:
        raise InvalidArgument(
            f"ensemble '{config.name}' depends on '{absent[0]}' which has no loaded version. Model '{absent[0]}'"
            f" loading failed with error: {failure(absent[0])}"
        )
    found: list[ServedVersion] = []
    for step in config.ensemble_scheduling.step:
        # proto3 gives 0 where the version is left out; Triton's files write -1 for the newest.
        version = "" if step.model_version in (-1, 0) else str(step.model_version)
        served = serves((step.model_name, version))
        if served is None:
            raise InvalidArgument(
                f"ensemble '{config.name}' depends on '{step.model_name}' whose required version {version} is not"
                " loaded."
            )
        found.append(served)
    return found


def resolve_divisions(config: model_config_pb2.ModelConfig, serves: Serves, failure: Failure) -> list[ServedVersion]:
    """The served versions of the divisions. One that is not loaded is not offered; raises if none is, or if one does
    not fit."""
    names = division_models(config)
    found = [version for name in names if (version := serves((name, ""))) is not None]
    if not found:
        reasons = "; ".join(f"{name}: {failure(name) or 'not loaded'}" for name in names)
        raise InvalidArgument(f"divided model '{config.name}': no model of its divisions is served: {reasons}")
    for version in found:
        check_division(config, version.description.config, _step_configs(version))
    return found


def _step_configs(version: ServedVersion) -> Iterator[model_config_pb2.ModelConfig]:
    """Of all models below an ensemble."""
    for step in version.checked_steps:
        yield step.description.config
        yield from _step_configs(step)


def check(
    config: model_config_pb2.ModelConfig, serves: Serves, failure: Failure
) -> tuple[model_config_pb2.ModelConfig, list[ServedVersion]]:
    """The ensemble's configuration as its steps determine it, and the versions of the steps.

    Of a divided model: its configuration, and the versions of those divisions that are served.
    """
    if is_divided(config):
        return config, resolve_divisions(config, serves, failure)
    versions = resolve_steps(config, serves, failure)
    return check_steps(config, [version.description.config for version in versions]), versions


def still_served(versions: Iterable[ServedVersion], serves: Serves) -> bool:
    """Whether all of these versions still serve: then an ensemble that was checked against them still fits."""
    return all(serves((version.model_name, version.model_version)) is version for version in versions)
