"""``isochrone drain``: send no new work to a worker or gateway."""

from __future__ import annotations

from typing import Annotated

import typer

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as, part, print_json
from isochrone.control.api.messages import Done

EPILOG = """
\b
Examples:
  isochrone drain cpu-2
  isochrone drain gw-1 --json

It finishes its requests. A drained gateway reports that it is not ready, so that load balancers choose another one; it
still serves the requests that reach it. Undo it with: isochrone undrain NAME
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def drain(
    name: Annotated[str, typer.Argument(help="A worker or gateway.", show_default=False)],
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Send no new work to a worker or gateway."""
    with failing_as("drain"), ApiClient(api) as client:
        done = client.send("POST", f"/v1/drains/{part(name)}", Done)
        print_json(done) if as_json else typer.echo(done.done)
