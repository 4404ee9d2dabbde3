"""``isochrone validate``: check a fleet.yaml or a model repository without starting or loading anything."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from isochrone.cli.console import counted
from isochrone.cli.files.checking import Checked, check

EPILOG = """
\b
Examples:
  isochrone validate fleet.yaml
  isochrone validate ./models
  isochrone validate s3://bucket/models
  isochrone validate fleet.yaml --json

Shows every error on its own line: file and line, key, expected value, given value. The exit status is 1 if there are
errors. Model files (onnx, Python) are read only as far as their configuration needs; loading them may still fail.
Of an encrypted version, the model file is not read and the configuration not checked: that needs its key.
At a URL, the files are listed and the configurations read; no model is fetched.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def validate(
    path: Annotated[
        str,
        typer.Argument(
            metavar="FLEET.yaml|MODEL_REPOSITORY",
            help="A file, a directory, or a repository's URL.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a fleet.yaml with the models it names, or a model repository."""
    found = check(path)
    if as_json:
        typer.echo(json.dumps(_as_json(found)))
    elif found.problems:
        for problem in found.problems:
            typer.secho(str(problem), fg="red")
        typer.echo(f"isochrone validate: {path} has {counted(len(found.problems), 'error')}", err=True)
    else:
        models = ", ".join(f"{name} {version}" for name, version in found.models.items()) or "none"
        typer.echo(f"{found.kind} {found.name} is valid; models: {models}")
    if found.problems:
        raise typer.Exit(1)


def _as_json(found: Checked) -> dict[str, object]:
    return {
        "valid": not found.problems,
        found.kind: found.name,
        "models": found.models,
        "problems": [
            {"where": each.where, "key": each.key, "expected": each.expected, "given": each.given}
            for each in found.problems
        ],
    }
