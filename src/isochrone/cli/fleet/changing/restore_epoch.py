"""``isochrone restore-epoch``: rebuild the epoch's record if neither it nor its copy can be read, or both are old."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiFailed, ApiOption, JsonOption, failing_as, print_json
from isochrone.cli.console import make_console, table
from isochrone.control.api.messages import RestoreAnswer, RestoreRequest

EPILOG = """
\b
Examples:
  isochrone restore-epoch --dry-run
  isochrone restore-epoch
  isochrone restore-epoch --yes
  isochrone restore-epoch --without gw-2

The committed versions are rebuilt from the versions that gateways serve and from the rollouts, and are shown first.
Requests are served meanwhile. Without a terminal, or with --json, nothing is written without --yes. The command waits
until every gateway has reported its versions, except those that --without names.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def restore_epoch(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write it without being asked.")] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="GATEWAY", help="Do not wait for this gateway. May be repeated."),
    ] = None,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the committed versions when their records are damaged or were put back."""
    with failing_as("restore-epoch"), ApiClient(api) as client:
        if as_json and not (yes or dry_run):
            raise ApiFailed("nothing was restored: --json shows no preview to agree to; add --yes, or --dry-run")
        ignored = tuple(without or ())
        seen = client.send("POST", "/v1/epoch/restore", RestoreAnswer, RestoreRequest(without=ignored), dry_run=1)
        if not as_json:
            _print(seen)
        if dry_run:
            if as_json:
                print_json(seen)
            return
        if not yes:
            _ask()
        # Write exactly the versions that were shown, or nothing.
        request = RestoreRequest(seen.digest, ignored)
        restored = client.send("POST", "/v1/epoch/restore", RestoreAnswer, request)
        print_json(restored) if as_json else typer.echo(f"Restored as epoch {restored.epoch}.")


def _ask() -> None:
    """Raises unless the user agrees, at a terminal."""
    if not sys.stdin.isatty():
        raise ApiFailed("nothing was restored: there is no terminal to ask at; agree with --yes")
    if not typer.confirm("Restore?", default=False):
        raise ApiFailed("nothing was restored")


def _print(seen: RestoreAnswer) -> None:
    console = make_console()
    shown = table(f"epoch {seen.epoch}, from {seen.source}", "model", "version", "previous", "canary", "pools")
    for model in seen.models:
        canary = f"{model.canary.version} at {model.canary.weight:.0%}" if model.canary is not None else "–"
        shown.add_row(model.name, model.version, model.previous or "–", canary, ", ".join(model.pools) or "–")
    console.print(shown)
    for note in seen.notes:
        console.print(Text(note, style="yellow"))
