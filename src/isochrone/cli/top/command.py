"""``isochrone top``: choose what to read (a fleet, or one process) and how to show it (a screen, lines, JSON)."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from isochrone.cli.api_client import DEFAULT_API, ApiOption, JsonOption, failing_as
from isochrone.cli.top.plain import plain_lines
from isochrone.cli.top.screen.running import run_screen
from isochrone.cli.top.sources import FleetSource, PageSource, Source

EPILOG = """
\b
Examples:
  isochrone top
  isochrone top --interval 5
  isochrone top --count 10 --json
  isochrone top http://localhost:8002

On a terminal, ? shows the keys: sort by a column, filter, details of a line, pause. Without one, and with --json, there
is a line or an object per update.

Requests, rejections and failures are per second, over the interval. Rejected requests (deadline, full queue, quota, no
worker) are no failures, nor are cancelled ones, such as hedges that were not needed. A model's requests are those of
clients at the gateways; its runs are those on the workers, including steps of ensembles. p99 is of the time inside a
worker; that of a gateway is what its callers waited. cpu is in percent of one core. Figures that a metrics page lacks
are left out.

With a URL, figures are of that process alone. A gateway's page tells of its workers only how many requests are in
flight, and their state.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def top(
    url: Annotated[
        str,
        typer.Argument(
            help="Metrics port of one worker or gateway, http://HOST:PORT, instead of a fleet.",
            show_default=False,
        ),
    ] = "",
    interval: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.1)] = 1.0,
    count: Annotated[int, typer.Option(help="Number of updates; 0: no limit.", min=0)] = 0,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Show live figures of models, workers and gateways. With --json, one object per update."""
    with failing_as("top"):
        source: Source = PageSource(url) if url else FleetSource(api)
        if not as_json and _has_screen():
            status = run_screen(source, interval, count)
            if status:
                raise typer.Exit(status)
        else:
            with source:
                _print(source, interval, count, as_json)


def _has_screen() -> bool:
    console = Console()
    return sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal


def _print(source: Source, interval: float, count: int, as_json: bool) -> None:
    source.sample()
    updates = 0
    while True:
        time.sleep(interval)
        sample = source.sample()
        updates += 1
        for line in [json.dumps(asdict(sample.seen))] if as_json else plain_lines(sample):
            typer.echo(line)
        if updates == count:
            return
