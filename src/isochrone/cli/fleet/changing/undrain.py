"""``isochrone undrain``: send work to a worker or gateway again."""

from __future__ import annotations

from typing import Annotated

import typer

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as, part, print_json
from isochrone.control.api.messages import Done

EPILOG = """
\b
Examples:
  isochrone undrain cpu-2
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def undrain(
    name: Annotated[str, typer.Argument(help="A drained worker or gateway.", show_default=False)],
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Send work to a worker or gateway again."""
    with failing_as("undrain"), ApiClient(api) as client:
        done = client.send("DELETE", f"/v1/drains/{part(name)}", Done)
        print_json(done) if as_json else typer.echo(done.done)
