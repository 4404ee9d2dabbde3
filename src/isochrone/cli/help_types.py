"""Types of options in ``--help``: TEXT, NUMBER, PATH instead of Python's ``<list[str]>``, which Typer prints.

A metavar that a command declares itself is kept.
"""

from __future__ import annotations

from typing import Any

_WORDS = {
    "str": "TEXT",
    "int": "INTEGER",
    "int range": "INTEGER",
    "float": "NUMBER",
    "float range": "NUMBER",
    "path": "PATH",
    "Path": "PATH",
    "file": "FILE",
    "directory": "DIRECTORY",
}


def with_plain_types(command: Any) -> Any:
    """The same command or group, with readable types."""
    for parameter in command.params:
        _name_type(parameter)
    for each in getattr(command, "commands", {}).values():
        with_plain_types(each)
    return command


def _name_type(parameter: Any) -> None:
    if not hasattr(parameter, "display_type"):
        return  # releases of Typer before 0.2x print words themselves
    if parameter.param_type_name == "argument":
        # The name of an argument is enough.
        parameter.display_type_rich = lambda ctx: None
    elif parameter.metavar is None and not parameter.is_flag and not parameter.count:
        label = parameter.display_type(None).strip("<>").removeprefix("list[").removesuffix("]")
        parameter.metavar = _WORDS.get(label)
