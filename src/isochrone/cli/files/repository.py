"""``isochrone repository``: prepare a model repository for an object store or a web server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from isochrone.cli.api_client import JsonOption, print_json
from isochrone.errors import IsochroneError
from isochrone.models.repository.layout import EXPECTED, is_model
from isochrone.models.sources.manifest import MANIFEST, manifest_of, parse_manifest

INDEX_EPILOG = f"""
\b
Examples:
  isochrone repository index ./models
  isochrone repository index ./models --json

Writes {MANIFEST} into the directory: every file with its size and SHA-256. Upload it with the files. A repository
on a web server (https://) needs it; one in an object store may have it: then wrong bytes are always found. Write it
again after every change.
"""

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Prepare a model repository for an object store or a web server.",
)


@app.callback()
def main() -> None:
    pass


@app.command(epilog=INDEX_EPILOG)
def index(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A model repository on disk.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Write the manifest of a repository.

    It has the size and SHA-256 of every file.
    """
    path = directory / MANIFEST
    try:
        if not directory.is_dir() or is_model(directory):
            _fail(f"{directory}: expected a directory of {EXPECTED}")
        content = manifest_of(directory)
        files = parse_manifest(content, str(path))
        # Atomic: a synchronisation may be running.
        unfinished = path.with_name(f".{MANIFEST}.{os.getpid()}")
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except IsochroneError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"cannot write {path}: {error.strerror or error}")
    size = sum(file.size for file in files)
    if as_json:
        print_json({"manifest": str(path), "files": len(files), "bytes": size})
    else:
        typer.echo(f"{path}: {len(files)} files, {size} bytes")


def _fail(reason: str) -> NoReturn:
    typer.secho(f"isochrone repository index: {reason}", fg="red", err=True)
    raise typer.Exit(1)
