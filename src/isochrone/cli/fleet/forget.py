"""``isochrone forget``: a gateway that died without a farewell no longer holds strict switches up."""

from __future__ import annotations

from typing import Annotated

import typer

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as, part, print_json
from isochrone.control.api.messages import Done

EPILOG = """
\b
Examples:
  isochrone forget gw-2

Only for a gateway whose process or machine is gone for sure: one that still serves could then answer with an old
version after a strict switch.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def forget(
    gateway: Annotated[str, typer.Argument(help="The gateway.", show_default=False)],
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Forget a gateway that is dead for sure."""
    with failing_as("forget"), ApiClient(api) as client:
        done = client.send("DELETE", f"/v1/known-gateways/{part(gateway)}", Done)
        print_json(done) if as_json else typer.echo(done.done)
