"""``isochrone repository``: prepare a model repository for an object store or a web server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from isochrone.cli.api_client import JsonOption, print_json
from isochrone.cli.console import counted
from isochrone.errors import IsochroneError
from isochrone.models.repository.layout import EXPECTED, is_model
from isochrone.models.sources.locations import parse_location
from isochrone.models.sources.manifest import MANIFEST, manifest_of, parse_manifest

INDEX_EPILOG = f"""
\b
Examples:
  isochrone repository index ./models
  isochrone repository index ./models --json

Writes {MANIFEST} into the directory: every file with its size and SHA-256. Upload it after the files. A repository
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
    place: Annotated[str, typer.Argument(metavar="DIR", help="A model repository on disk.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Write the manifest of a repository: its files, their sizes, their SHA-256."""
    directory = _directory(place)
    path = directory / MANIFEST
    try:
        if not directory.is_dir() or is_model(directory):
            _fail(f"{directory}: expected a directory of {EXPECTED}")
        content = manifest_of(directory)
        # The manifest also names empty folders: versions of ensembles.
        files = [file for file in parse_manifest(content, str(path)) if not (directory / file.path).is_dir()]
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
        typer.echo(f"{path}: {counted(len(files), 'file')}, {counted(size, 'byte')}")


def _directory(text: str) -> Path:
    try:
        place = parse_location(text)
    except IsochroneError as error:
        _fail(str(error))
    if not isinstance(place, Path):
        _fail(f"{place}: expected a directory of this machine: index it, then upload its files and the manifest")
    return place


def _fail(reason: str) -> NoReturn:
    typer.secho(f"isochrone repository index: {reason}", fg="red", err=True)
    raise typer.Exit(1)
