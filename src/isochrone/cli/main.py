"""The program ``isochrone``: the group of all commands, which ``commands`` lists."""

from __future__ import annotations

import typer

import isochrone
from isochrone.build_info import IS_COMPILED
from isochrone.cli.commands import CommandsOnDemand

EPILOG = """
\b
Examples:
  isochrone up
  isochrone serve ./models
  isochrone infer detector
  isochrone --install-completion
"""

app = typer.Typer(
    cls=CommandsOnDemand,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    # Plain help: the boxes of the rich one cut long option names off at 80 columns.
    rich_markup_mode=None,
    help="Low-latency, deadline-first inference for fleets of agents.",
    epilog=EPILOG,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"isochrone {isochrone.__version__} ({'compiled' if IS_COMPILED else 'interpreted'})")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Runs before every command."""
