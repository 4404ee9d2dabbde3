"""Writes docs/reference/cli.md, the reference of the command line, from the commands themselves.

    python scripts/cli_reference.py docs/reference/cli.md

Usage, arguments, options, defaults and examples are those of ``--help``: correct a wrong sentence in the command.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import typer.main

from isochrone.cli.main import app

_HEAD = """\
# Command line: reference

All commands and options of `isochrone`. `make docs` generates this page from the commands; `isochrone COMMAND --help`
prints the same. [The guide to the command line](../commands.md) explains how the commands work together.

"""
#: What the help of a command does not say.
_NOTES = {
    "isochrone serve": (
        "\n`isochrone serve` also takes the flags of tritonserver: [this list](../triton-flags.md) says which have an "
        "effect.\n"
    ),
    "isochrone tritonserver": "\nIts arguments and options are those of [`isochrone serve`](#isochrone-serve).\n",
    "isochrone simulate run": "\n`isochrone simulate SCENARIO` is a short form.\n",
}


#: Commands whose options are shown with another one.
_SHOWN_ELSEWHERE = ("isochrone tritonserver",)


def page() -> str:
    """The whole page."""
    commands = list(_commands("isochrone", typer.main.get_command(app)))
    parts = [_HEAD, "| command | |\n|---|---|\n"]
    parts += [f"| [`{path}`](#{_anchor(path)}) | {_summary(command)} |\n" for path, command in commands]
    for path, command in commands:
        parts.append(f"\n## {path}\n\n{_paragraphs(command.help or '')}\n")
        parts += _body(path, command) if path not in _SHOWN_ELSEWHERE else ()
        parts.append(_NOTES.get(path, ""))
    return "".join(parts)


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command that does something by itself, in the order of the help."""
    context = typer.Context(command, info_name=path)
    names = command.list_commands(context) if hasattr(command, "list_commands") else ()
    if not names or command.invoke_without_command:
        yield path, command
    for name in names:
        yield from _commands(f"{path} {name}", command.get_command(context, name))


def _body(path: str, command: Any) -> Iterator[str]:
    parameters = [each for each in command.params if "--help" not in each.opts and not getattr(each, "hidden", False)]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    yield f"\n```text\n{' '.join((path, '[OPTIONS]', *(_in_usage(each) for each in arguments)))}\n```\n"
    if parameters:
        yield "\n| argument or option | meaning |\n|---|---|\n"
        yield from (f"| `{_cell(_name(each))}` | {_cell(_meaning(each))} |\n" for each in parameters)
    examples, notes = _epilog(command.epilog or "")
    if examples:
        yield "\nExamples:\n\n```text\n" + "\n".join(examples) + "\n```\n"
    if notes:
        yield f"\n{notes}\n"


# Usage, names and defaults are put together here: releases of Typer format them in different ways.


def _in_usage(argument: Any) -> str:
    return _name(argument) if argument.required else f"[{_name(argument)}]"


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name.upper()).strip("[]")
        return f"{name}..." if parameter.nargs == -1 and not name.endswith("...") else name
    name = ", ".join(parameter.opts)
    if parameter.secondary_opts:
        return f"{name} / {', '.join(parameter.secondary_opts)}"
    return name if parameter.is_flag else f"{name} {parameter.metavar or parameter.type.name.upper()}"


def _meaning(parameter: Any) -> str:
    return " ".join((parameter.help or "").split()) + _default(parameter)


def _default(parameter: Any) -> str:
    given = parameter.default() if callable(parameter.default) else parameter.default
    if isinstance(parameter.show_default, str):
        return f" Default: {parameter.show_default}."
    if parameter.required or not parameter.show_default or given is None or given in ("", (), []):
        return ""
    if getattr(parameter, "is_flag", False):
        names = parameter.opts if given else parameter.secondary_opts
        return f" Default: `{names[0]}`." if parameter.secondary_opts else ""
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    return f" Default: `{given}`."


def _epilog(text: str) -> tuple[list[str], str]:
    """The examples, and what is said behind them."""
    examples, notes = [], []
    for line in text.replace("\b", "").strip().splitlines():
        if line.startswith("  "):
            examples.append(line.strip())
        elif line.strip() != "Examples:":
            notes.append(line)
    return examples, _paragraphs("\n".join(notes))


def _paragraphs(text: str) -> str:
    blocks = re.split(r"\n\s*\n", text.replace("\b", "").strip())
    return "\n\n".join(" ".join(block.split()) for block in blocks)


def _summary(command: Any) -> str:
    return _paragraphs(command.help or "").partition("\n")[0]


def _anchor(title: str) -> str:
    return title.replace(" ", "-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
