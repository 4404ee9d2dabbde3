"""``isochrone status``: show the state of the fleet."""

from __future__ import annotations

import time

import typer

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as, print_json
from isochrone.cli.console import make_console
from isochrone.cli.fleet.inspecting.status_view import picture
from isochrone.control.api.messages import Status

EPILOG = """
\b
Examples:
  isochrone status
  isochrone status --json
  isochrone status --api http://10.0.0.5:8003

While the store is unreachable, the controller shows the last known state and says so.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def status(api: ApiOption = DEFAULT_API, as_json: JsonOption = False) -> None:
    """Show the fleet: models and their versions, workers, gateways, running rollouts."""
    with failing_as("status"), ApiClient(api) as client:
        seen = client.get("/v1/status", Status)
        if as_json:
            print_json(seen)
        else:
            make_console().print(picture(seen, time.time()))
