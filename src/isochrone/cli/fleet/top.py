"""``isochrone top``: the fleet at work, live: what each gateway and worker does per second.

Reads the status from a controller and the metrics page of every process that has one. A page that cannot be read
leaves its figures out.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated

import httpx
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as
from isochrone.cli.console import clock, make_console, table
from isochrone.cli.fleet.top_figures import Figures, Reading, between, read_page
from isochrone.cli.rollouts.rollout_view import outcome_text
from isochrone.control.api.messages import Status

EPILOG = """
\b
Examples:
  isochrone top
  isochrone top --interval 5
  isochrone top --count 10 --json

Requests and failures are per second, over the interval. p99 is of the time inside a worker; a page that does not tell
a figure leaves it out. Ctrl-C ends it.
"""

_COLUMNS = ("req/s", "refused/s", "failed/s", "in flight", "p99 ms")
#: Seconds for one metrics page.
_PAGE_TIMEOUT = 2.0

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    count: Annotated[int, typer.Option(help="Looks before it ends; 0: it does not.", min=0)] = 0,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Show what every gateway and worker does, live. With --json, one object a look."""
    console = make_console()
    with failing_as("top"), ApiClient(api) as client, _Pages() as pages:
        status = client.get("/v1/status", Status)
        pages.look(status)
        looks = 0
        live = console.is_terminal and not as_json
        with Live(console=console, auto_refresh=False) if live else nullcontext() as shown:
            while True:
                time.sleep(interval)
                status = client.get("/v1/status", Status)
                figures = pages.look(status)
                looks += 1
                if as_json:
                    typer.echo(json.dumps({name: asdict(each) for name, each in figures.items()}))
                elif shown is not None:
                    shown.update(picture(status, figures), refresh=True)
                else:
                    for line in plain_lines(status, figures, time.time()):
                        typer.echo(line)
                if looks == count:
                    return


class _Pages:
    """The metrics pages of a fleet, each kept to be compared with the next reading of it."""

    def __init__(self) -> None:
        self._client = httpx.Client(timeout=_PAGE_TIMEOUT, trust_env=False)
        self._readers = ThreadPoolExecutor(8)
        self._last: dict[str, tuple[float, Reading]] = {}

    def __enter__(self) -> _Pages:
        return self

    def __exit__(self, *error: object) -> None:
        self._readers.shutdown()
        self._client.close()

    def look(self, status: Status) -> dict[str, Figures]:
        """By name of gateway or worker: what it did since the last look."""
        places = {gateway.name: gateway.metrics for gateway in status.gateways if gateway.metrics}
        places |= {worker.name: worker.metrics for worker in status.workers if worker.metrics}
        readings = dict(zip(places, self._readers.map(self._read, places.values()), strict=True))
        figures = {}
        for name, taken in readings.items():
            before = self._last.pop(name, None)
            if taken is not None:
                self._last[name] = taken
                figures[name] = between(*_pair(before, taken))
        return figures

    def _read(self, address: str) -> tuple[float, Reading] | None:
        try:
            answer = self._client.get(f"http://{address}/metrics", headers={"accept": "text/plain"})
            answer.raise_for_status()
            return time.monotonic(), read_page(answer.text)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return None


def _pair(before: tuple[float, Reading] | None, after: tuple[float, Reading]) -> tuple[Reading, Reading, float]:
    """Without a reading before there is nothing to tell rates by."""
    if before is None:
        return Reading(), Reading({name: after[1].sums[name] for name in after[1].sums if name == "in_flight"}), 0.0
    return before[1], after[1], after[0] - before[0]


def picture(status: Status, figures: dict[str, Figures]) -> RenderableType:
    head = f"fleet {status.fleet}  epoch {status.epoch}  leader {status.leader or 'none'}"
    parts: list[RenderableType] = [Text(head, style="bold")]
    if not status.store.connected:
        parts.append(Text(f"the store is away: {status.store.error}", style="red"))
    gateways = _table("gateways", "gateway")
    for gateway in status.gateways:
        gateways.add_row(gateway.name, *_cells(figures.get(gateway.name)))
    workers = _table("workers", "worker")
    for worker in status.workers:
        workers.add_row(f"{worker.name}{' (draining)' if worker.draining else ''}", *_cells(figures.get(worker.name)))
    parts += [gateways, workers]
    parts += [Text(outcome_text(record), style="cyan") for record in status.rollouts]
    return Group(*parts)


def plain_lines(status: Status, figures: dict[str, Figures], now: float) -> list[str]:
    """The same, one line for each process."""
    lines = []
    names = [("gateway", gateway.name) for gateway in status.gateways]
    names += [("worker", worker.name) for worker in status.workers]
    for kind, name in names:
        cells = zip(_COLUMNS, _cells(figures.get(name)), strict=True)
        told = "  ".join(f"{cell} {column}" for column, cell in cells if cell != "–")
        lines.append(f"{clock(now)}  {kind} {name}  {told or 'tells nothing'}")
    return lines


def _table(title: str, first: str) -> Table:
    return table(title, first, *_COLUMNS, right=_COLUMNS)


def _cells(figures: Figures | None) -> tuple[str, ...]:
    told = figures or Figures()
    rates = (told.requests, told.refused, told.failures)
    shown = ["–" if rate is None else f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}" for rate in rates]
    shown.append("–" if told.in_flight is None else f"{told.in_flight:.0f}")
    shown.append("–" if told.p99_ms is None else f"{told.p99_ms:.2f}")
    return tuple(shown)
