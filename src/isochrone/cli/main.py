"""``isochrone``: one file per command or group of them, listed in ``commands``; this one puts them together."""

from __future__ import annotations

import typer

import isochrone
from isochrone.cli.commands import CommandsOnDemand

app = typer.Typer(
    cls=CommandsOnDemand,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: the boxes of the rich one cut long option names off at 80 columns.
    rich_markup_mode=None,
    help="Low-latency, deadline-first inference for fleets of agents.",
    epilog="\b\nExamples:\n  isochrone serve ./models\n  isochrone infer detector",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"isochrone {isochrone.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Runs before every command."""
