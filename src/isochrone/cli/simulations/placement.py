"""``isochrone simulate placement``: our planner of model placement beside first-fit and best-fit."""

from __future__ import annotations

import json
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from isochrone.simulate.placement.comparison import compare

EPILOG = """
\b
Examples:
  isochrone simulate placement
  isochrone simulate placement --models 200 --workers 50 --changes 120 --seed 7
  isochrone simulate placement --changes 20 --json

Workers are lost, drained and added, models get hot, cool, new and retired, versions change, memory shrinks: all
planners meet the same changes. The same arguments give the same figures. docs/placement.md describes planners and
columns.
"""

_COLUMNS = {
    "loads/change": "loads_per_change",
    "most": "most_loads",
    "GiB/change": "gib_per_change",
    "loads/lost replica": "loads_per_lost_replica",
    "over-committed": "over_committed",
    "unplaced": "unplaced_per_change",
    "back s": "back_seconds_mean",
    "longest s": "back_seconds_most",
    "busiest": "busiest_mean",
    "hot model": "hot_model_busy_most",
}
#: Seconds between two lines of progress without a terminal.
_LINE_SECONDS = 15
_SHARES = ("busiest_mean", "hot_model_busy_most")


def placement(
    models: Annotated[int, typer.Option(help="Models of the fleet.", min=20, max=5000)] = 200,
    workers: Annotated[int, typer.Option(help="Workers, of three kinds.", min=10, max=1000)] = 50,
    changes: Annotated[int, typer.Option(help="Changes, one after the other.", min=1)] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the fleet and of its changes.", min=0)] = 1,
    json_out: Annotated[bool, typer.Option("--json/--no-json", help="Print figures as JSON.")] = False,
) -> None:
    """Plan which models run on which workers while a fleet changes, with our planner, first-fit and best-fit."""
    figures = _compare(models, workers, changes, seed)
    if json_out:
        typer.echo(json.dumps(figures, indent=2, ensure_ascii=False))
        return
    console = Console()
    # Rather wrap wide lines than cut the table at 80 columns.
    console = Console(width=max(console.width, 140))
    title = (
        f"{models} models ({figures['models_gib']:,} GiB) on {workers} workers ({figures['memory_gib']:,} GiB), "
        f"{changes} changes, seed {seed}"
    )
    console.print(_table(title, figures["planners"]))
    kinds = ", ".join(f"{kind} {count}" for kind, count in figures["kinds"].items())
    console.print(f"\nchanges: {kinds}", highlight=False)


def _compare(models: int, workers: int, changes: int, seed: int) -> dict[str, Any]:
    """With progress on a terminal, else a plain line every few seconds."""
    console = Console(stderr=True)
    last = monotonic()

    def line(planner: str, done: int, whole: int) -> None:
        nonlocal last
        if monotonic() - last >= _LINE_SECONDS:
            last = monotonic()
            typer.echo(f"{planner}: {done} of {whole} changes", err=True)

    if not console.is_terminal:
        return compare(models, workers, changes, seed, line)
    with console.status("") as status:
        return compare(models, workers, changes, seed, lambda name, done, of: status.update(f"{name}: {done} of {of}"))


def _table(title: str, planners: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    table.add_column("planner", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for planner in planners:
        table.add_row(planner["planner"], *(_cell(key, planner[key]) for key in _COLUMNS.values()))
    return table


def _cell(key: str, value: float) -> str:
    if key in _SHARES:
        return f"{value:.0%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
