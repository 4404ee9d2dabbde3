"""``isochrone``: one file per command group; this one puts them together."""

from __future__ import annotations

import typer

import isochrone
from isochrone.cli import gateway, infer, serve, simulate

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: the boxes of the rich one cut long option names off at 80 columns.
    rich_markup_mode=None,
    help="Low-latency, deadline-first inference for fleets of agents.",
    epilog="\b\nExamples:\n  isochrone serve ./models\n  isochrone infer detector",
)
app.command("serve", cls=serve.TritonFlags, epilog=serve.EPILOG)(serve.serve)
app.command("gateway", epilog=gateway.EPILOG)(gateway.gateway)
app.command("infer", epilog=infer.EPILOG)(infer.infer)
app.add_typer(simulate.app, name="simulate")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"isochrone {isochrone.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Runs before every command."""
