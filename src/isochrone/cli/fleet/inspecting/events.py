"""``isochrone events``: the log of changes with time and user."""

from __future__ import annotations

from typing import Annotated

import typer

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as, print_json
from isochrone.cli.console import clock
from isochrone.control.api.messages import Event, Events

EPILOG = """
\b
Examples:
  isochrone events
  isochrone events --limit 500
  isochrone events --follow --json
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new events as they happen.")] = False,
    limit: Annotated[int, typer.Option(help="Number of the latest events.", min=0, max=1000)] = 100,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Show who changed what and when, the newest last. With --json, one object per line."""
    with failing_as("events"), ApiClient(api) as client:
        if follow:
            for event in client.follow("/v1/events", Event, limit=limit, follow=1):
                _print(event, as_json)
        else:
            for event in client.get("/v1/events", Events, limit=limit).events:
                _print(event, as_json)


def _print(event: Event, as_json: bool) -> None:
    if as_json:
        print_json(event)
        return
    words = (clock(event.at), event.who, event.what, event.about, event.detail)
    typer.echo("  ".join(word for word in words if word))
