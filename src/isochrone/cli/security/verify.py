"""``isochrone verify``: check the signatures of a repository's versions, as workers do before they load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from isochrone.cli.api_client import JsonOption, print_json
from isochrone.cli.console import cell, make_console, plain, table
from isochrone.cli.security.repositories import ALL, model_directories, repository_directory, versions_of
from isochrone.errors import IsochroneError
from isochrone.models.repository.signed.checking import verify_in_place
from isochrone.models.repository.signed.covered import configurations
from isochrone.secure.signing.signed_version import Provenance
from isochrone.secure.signing.trust import Trust

EPILOG = """
\b
Examples:
  isochrone verify ./models --trust release.pub
  isochrone verify ./models detector tracker --trust release.pub --trust authority.crt
  isochrone verify ./models --trust /etc/isochrone/signers --json

Exits with 1 if a version is not signed, is not what was signed, or was signed by nobody in --trust.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@dataclass(frozen=True, slots=True)
class _Result:
    model: str
    version: int
    provenance: Provenance | None
    reason: str = ""


@app.command(epilog=EPILOG)
def verify(
    repository: Annotated[str, typer.Argument(help="A model repository on disk.", show_default=False)],
    trust: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE_OR_DIRECTORY",
            help="PEM file with public keys or authorities, or a directory of them. May be repeated.",
        ),
    ],
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODELS", help="Some of its models.", show_default="all")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the signatures of a repository's versions."""
    try:
        trusted = Trust(trust)
        directories = model_directories(repository_directory(repository), models or [])
        results = [_check(trusted, each, number) for each in directories for number in versions_of(each, ALL)]
    except (IsochroneError, OSError) as error:
        typer.secho(f"isochrone verify: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json([_row(each) for each in results])
    else:
        _show(results)
    raise typer.Exit(0 if results and not any(each.reason for each in results) else 1)


def _check(trust: Trust, directory: Path, version: int) -> _Result:
    model = directory.name
    try:
        provenance = verify_in_place(trust, model, directory, version, configurations(directory))
        return _Result(model, version, provenance)
    except IsochroneError as error:
        return _Result(model, version, None, str(error))


def _row(result: _Result) -> dict[str, Any]:
    provenance = {} if result.provenance is None else msgspec.to_builtins(result.provenance)
    return {
        "model": result.model,
        "version": result.version,
        "verified": not result.reason,
        "reason": result.reason,
        **provenance,
    }


def _show(results: list[_Result]) -> None:
    made = table("signatures", "model", "version", "signed by", "at", "from", right=("version",))
    for each in results:
        found = each.provenance
        shown = (found.signer, found.at or "–", found.source or "–") if found is not None else ("refused", "–", "–")
        made.add_row(cell(each.model), str(each.version), *map(cell, shown), style="red" if found is None else "")
    make_console().print(made)
    for each in results:
        if each.reason:
            typer.secho(plain(each.reason), fg="red", err=True)
