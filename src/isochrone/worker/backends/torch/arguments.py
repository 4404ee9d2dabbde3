"""Which input of a configuration is which argument of a module's ``forward``. Read once per load."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from isochrone.errors import ConfigError
from isochrone.worker.backends import parameters
from isochrone.worker.backends.tensors.declared import declared_outputs, scheduler_inputs

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext

_POSITION = re.compile(r"__(\d+)$")


def check_datatypes(context: LoadContext) -> None:
    declared = {spec.name: spec.datatype for spec in context.signature.inputs} | declared_outputs(context)
    for name, datatype in declared.items():
        if datatype == "BYTES":
            key = f"data_type of '{name}'"
            raise ConfigError(parameters.where(context), key, "a number type, as torch has no strings", "BYTES")


def input_names(context: LoadContext) -> list[str]:
    """The inputs of a run: those that are declared, then those that the scheduler adds."""
    names = [spec.name for spec in context.signature.inputs]
    return names + sorted(scheduler_inputs(context) - set(names))


def matched_arguments(
    context: LoadContext, names: list[str], forward: tuple[list[str], list[str]]
) -> tuple[list[str], list[str]]:
    """The names of the inputs that become positional arguments, in order, and keyword arguments."""
    positional, keywords = forward
    if set(names) <= {*positional, *keywords}:
        ordered = [name for name in positional if name in names]
        if ordered == positional[: len(ordered)]:
            return ordered, [name for name in keywords if name in names]
    by_position = {int(match[1]): name for name in names if (match := _POSITION.search(name))}
    if len(by_position) == len(names):
        if sorted(by_position) != list(range(len(names))):
            expected = "names that end in " + ", ".join(f"__{number}" for number in range(len(names)))
            raise ConfigError(parameters.where(context), "input.name", expected, ", ".join(names))
        names = [by_position[number] for number in range(len(names))]
    if keywords or len(names) > len(positional):
        expected = "the arguments of forward: " + ", ".join([*positional, *keywords])
        raise ConfigError(parameters.where(context), "input.name", expected, ", ".join(names))
    return names, []
