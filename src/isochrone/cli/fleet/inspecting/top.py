"""``isochrone top``: live rates and latencies of models, gateways and workers.

Reads the status from a controller and the metrics page of every process that has one. Figures of a page that cannot be
read are left out.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Annotated

import httpx
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as
from isochrone.cli.console import clock, make_console, table
from isochrone.cli.fleet.inspecting.top_figures import Figures, ModelFigures, Reading, between, of_models, read_page
from isochrone.cli.rollouts.view import outcome_text
from isochrone.control.api.messages import Status

EPILOG = """
\b
Examples:
  isochrone top
  isochrone top --interval 5
  isochrone top --count 10 --json

Requests, rejections and failures are per second, over the interval. Rejected requests (deadline, full queue, quota, no
worker) are no failures, nor are cancelled ones, such as hedges that were not needed. A model's requests are those of
clients at the gateways; its runs are those on the workers, including steps of ensembles. p99 is of the time inside a
worker. cpu is in percent of one core. Figures that a metrics page lacks are left out. Ctrl-C ends the command.
"""

_COLUMNS = ("req/s", "rejected/s", "failed/s", "in flight", "p99 ms", "cpu", "memory")
_MODEL_COLUMNS = ("req/s", "rejected/s", "failed/s", "runs/s", "in flight", "p99 ms")
#: Seconds for one metrics page.
_PAGE_TIMEOUT = 2.0

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def top(
    interval: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.1)] = 1.0,
    count: Annotated[int, typer.Option(help="Number of updates; 0: no limit.", min=0)] = 0,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Show live figures of models, gateways and workers. With --json, one object per update."""
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
                seen = pages.look(status)
                looks += 1
                if as_json:
                    typer.echo(json.dumps(asdict(seen)))
                elif shown is not None:
                    shown.update(picture(status, seen), refresh=True)
                else:
                    for line in plain_lines(status, seen, time.time()):
                        typer.echo(line)
                if looks == count:
                    return


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the whole fleet, by name."""

    models: dict[str, ModelFigures] = field(default_factory=dict)
    gateways: dict[str, Figures] = field(default_factory=dict)
    workers: dict[str, Figures] = field(default_factory=dict)


class _Pages:
    """The metrics pages of a fleet; each is kept for comparison with its next reading."""

    def __init__(self) -> None:
        self._client = httpx.Client(timeout=_PAGE_TIMEOUT, trust_env=False)
        self._readers = ThreadPoolExecutor(8)
        self._last: dict[str, tuple[float, Reading]] = {}

    def __enter__(self) -> _Pages:
        return self

    def __exit__(self, *error: object) -> None:
        self._readers.shutdown()
        self._client.close()

    def look(self, status: Status) -> Seen:
        """The figures of the processes since the last reading."""
        places = {gateway.name: gateway.metrics for gateway in status.gateways if gateway.metrics}
        places |= {worker.name: worker.metrics for worker in status.workers if worker.metrics}
        readings = dict(zip(places, self._readers.map(self._read, places.values()), strict=True))
        pairs = {}
        for name, taken in readings.items():
            before = self._last.pop(name, None)
            if taken is not None:
                self._last[name] = taken
                # Without an earlier reading there are no rates.
                at, reading = before or (taken[0], Reading())
                pairs[name] = (reading, taken[1], taken[0] - at)
        gateways = {each.name: pairs[each.name] for each in status.gateways if each.name in pairs}
        workers = {each.name: pairs[each.name] for each in status.workers if each.name in pairs}
        return Seen(
            of_models(gateways.values(), workers.values()),
            {name: between(*pair) for name, pair in gateways.items()},
            {name: between(*pair) for name, pair in workers.items()},
        )

    def _read(self, address: str) -> tuple[float, Reading] | None:
        try:
            answer = self._client.get(f"http://{address}/metrics", headers={"accept": "text/plain"})
            answer.raise_for_status()
            return time.monotonic(), read_page(answer.text)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return None


def picture(status: Status, seen: Seen) -> RenderableType:
    head = f"fleet {status.fleet}  epoch {status.epoch}  leader {status.leader or 'none'}"
    parts: list[RenderableType] = [Text(head, style="bold")]
    if not status.store.connected:
        parts.append(Text(f"the store is unreachable: {status.store.error}", style="red"))
    models = table("models", "model", "version", *_MODEL_COLUMNS, right=_MODEL_COLUMNS)
    for model in status.models:
        models.add_row(model.name, model.version or "–", *_model_cells(seen.models.get(model.name)))
    gateways = table("gateways", "gateway", *_COLUMNS, right=_COLUMNS)
    for gateway in status.gateways:
        gateways.add_row(gateway.name, *_cells(seen.gateways.get(gateway.name)))
    workers = table("workers", "worker", *_COLUMNS, right=_COLUMNS)
    for worker in status.workers:
        name = f"{worker.name}{' (draining)' if worker.draining else ''}"
        workers.add_row(name, *_cells(seen.workers.get(worker.name)))
    parts += [models, gateways, workers]
    parts += [Text(outcome_text(record), style="cyan") for record in status.rollouts]
    return Group(*parts)


def plain_lines(status: Status, seen: Seen, now: float) -> list[str]:
    """The same, one line for each model and process."""
    rows = [
        *((f"model {each.name}", _MODEL_COLUMNS, _model_cells(seen.models.get(each.name))) for each in status.models),
        *((f"gateway {each.name}", _COLUMNS, _cells(seen.gateways.get(each.name))) for each in status.gateways),
        *((f"worker {each.name}", _COLUMNS, _cells(seen.workers.get(each.name))) for each in status.workers),
    ]
    lines = []
    for name, columns, cells in rows:
        figures = "  ".join(f"{cell} {column}" for column, cell in zip(columns, cells, strict=True) if cell != "–")
        lines.append(f"{clock(now)}  {name}  {figures or 'no figures'}")
    return lines


def _cells(figures: Figures | None) -> tuple[str, ...]:
    shown = figures or Figures()
    return (
        *map(_rate, (shown.requests, shown.rejected, shown.failures)),
        "–" if shown.in_flight is None else f"{shown.in_flight:.0f}",
        "–" if shown.p99_ms is None else f"{shown.p99_ms:.2f}",
        "–" if shown.cpu is None else f"{shown.cpu:.0%}",
        "–" if shown.memory is None else f"{shown.memory / 2**20:,.0f} MiB",
    )


def _model_cells(figures: ModelFigures | None) -> tuple[str, ...]:
    shown = figures or ModelFigures()
    return (
        *map(_rate, (shown.requests, shown.rejected, shown.failures, shown.runs)),
        "–" if shown.in_flight is None else f"{shown.in_flight:.0f}",
        "–" if shown.p99_ms is None else f"{shown.p99_ms:.2f}",
    )


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"
