"""Models of one name in several repositories: Triton's ``--model-namespacing``.

Each repository is a namespace with the name of its directory. A model whose name is unique keeps it. Models that share
a name are served as ``namespace::name``; the plain name is ambiguous, but in an ensemble's step it means the model in
the ensemble's repository. This module only tests whether directories exist.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from isochrone.errors import InvalidArgument

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2

_SEPARATOR = "::"


class Namespaces:
    """The repositories of a server, by the names of their namespaces."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths: dict[str, Path] = {}
        for path in paths:
            name, number = path.resolve().name, 2
            while name in self._paths:
                name, number = f"{path.resolve().name}-{number}", number + 1
            self._paths[name] = path

    def served_name(self, plain: str, path: Path) -> str:
        """The name under which the model of a repository is served."""
        if len(self._holders(plain)) < 2:
            return plain
        return next(name for name, other in self._paths.items() if other == path) + _SEPARATOR + plain

    def directories(self, name: str) -> list[Path]:
        """The directory of the model that is served as ``name``, if it exists. Raises for an ambiguous name."""
        namespace, separator, plain = name.partition(_SEPARATOR)
        if separator and namespace in self._paths:
            directory = self._paths[namespace] / plain
            return [directory] if os.path.isdir(directory) else []
        holders = self._holders(name)
        if len(holders) > 1:
            raise ambiguous(name, len(holders))
        return [path / name for path in holders]

    def settle_steps(self, config: model_config_pb2.ModelConfig, path: Path) -> None:
        """Replaces the names in an ensemble's steps by served names; models of its own repository come first."""
        for step in config.ensemble_scheduling.step:
            if os.path.isdir(path / step.model_name):
                step.model_name = self.served_name(step.model_name, path)

    def _holders(self, plain: str) -> list[Path]:
        return [path for path in self._paths.values() if os.path.isdir(path / plain)]


def plain_name(name: str) -> str:
    """The name of a model in its repository."""
    return name.partition(_SEPARATOR)[2] or name


def ambiguous(name: str, count: int) -> InvalidArgument:
    return InvalidArgument(
        f"There are {count} identifiers of model '{name}' in global map, model namespace must be provided to resolve"
        " ambiguity."
    )
