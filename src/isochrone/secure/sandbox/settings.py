"""What the operator wants of the sandbox: never the configuration of a model, which comes with the model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isochrone.errors import ConfigError, FlagError
from isochrone.secure.sandbox import limits
from isochrone.secure.sandbox.confinement import Confinement
from isochrone.secure.sandbox.files import paths, scratch
from isochrone.secure.sandbox.support import Support

#: What ``--sandbox-allow`` can give to a model.
GRANTS = ("network", "processes")
#: Of the machine's memory, for one process of a model.
_DEFAULT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """How the python models of a worker are confined."""

    support: Support
    #: Of each process, where ``memory_by_model`` has none.
    memory_bytes: int
    memory_by_model: Mapping[str, int] = field(default_factory=dict)
    #: Grant → the models that have it.
    grants: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def confinement(self, model: str, directory: str) -> Confinement:
        """Of a model in ``directory``. Raises ``ConfigError`` if others could read that."""
        python = paths.own_python_directories()
        directory = os.path.realpath(directory)
        _check_place(directory, python)
        return Confinement(
            model=model,
            directory=directory,
            python=python,
            memory_bytes=self.memory_by_model.get(model, self.memory_bytes),
            network=model in self.grants.get("network", ()),
            processes=model in self.grants.get("processes", ()),
            landlock=self.support.landlock,
            filtered=self.support.filters,
        )


def _check_place(directory: str, python: Sequence[str]) -> None:
    expected = "a directory of its own: with --sandbox, every model may read those of Python and of libraries"
    for readable in paths.readable_directories(python):
        if paths.is_within(directory, readable):
            raise ConfigError(directory, "model repository", expected, f"one inside of {readable}")
    if directory == scratch.DIRECTORY:
        expected = f"another directory than {scratch.DIRECTORY}, the place of temporary files with --sandbox"
        raise ConfigError(directory, "model repository", expected, directory)


def read_grants(given: Sequence[str]) -> dict[str, frozenset[str]]:
    """``--sandbox-allow GRANT=MODEL``."""
    grants: dict[str, set[str]] = {}
    for text in given:
        grant, equals, model = text.partition("=")
        if grant not in GRANTS or not equals or not model:
            raise FlagError("--sandbox-allow", f"GRANT=MODEL with a grant out of {', '.join(GRANTS)}", repr(text))
        grants.setdefault(grant, set()).add(model)
    return {grant: frozenset(models) for grant, models in grants.items()}


def default_memory() -> int:
    return int(limits.machine_memory() * _DEFAULT_SHARE)
