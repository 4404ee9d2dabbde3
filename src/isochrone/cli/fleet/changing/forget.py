"""``isochrone forget``: remove a dead gateway, so that strict switches no longer wait for it."""

from __future__ import annotations

from typing import Annotated

import typer

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as, part, print_json
from isochrone.control.api.messages import Done

EPILOG = """
\b
Examples:
  isochrone forget gw-2

Use it only when the gateway's process or machine is certainly gone: a gateway that still serves could answer with an
old version after a strict switch.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def forget(
    gateway: Annotated[str, typer.Argument(help="The gateway.", show_default=False)],
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Remove a dead gateway from the fleet's records."""
    with failing_as("forget"), ApiClient(api) as client:
        done = client.send("DELETE", f"/v1/known-gateways/{part(gateway)}", Done)
        print_json(done) if as_json else typer.echo(done.done)
