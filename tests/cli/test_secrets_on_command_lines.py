"""No option takes a secret as its value: every user of a machine can read command lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from isochrone.cli.main import app

_WORDS = frozenset(("token", "password", "secret", "credential", "credentials"))


def _options(command: Any, path: str = "isochrone") -> Iterator[tuple[str, Any]]:
    context = typer.Context(command)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from _options(command.get_command(context, name), f"{path} {name}")
    yield from ((path, option) for option in command.params if option.param_type_name == "option")


def test_secrets_come_from_files_and_the_environment() -> None:
    options = list(_options(typer.main.get_command(app)))
    assert len(options) > 200, "the commands were found"
    named = [
        f"{path} {name}"
        for path, option in options
        for name in option.opts
        if _WORDS & set(name.split("-")) and not option.is_flag and not name.endswith("-file")
    ]
    assert not named
