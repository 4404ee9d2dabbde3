"""``isochrone simulate autoscaling``: autoscaling algorithms side by side on simulated pools."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status

from isochrone.errors import ConfigError, IsochroneError
from isochrone.simulate.autoscaling.comparison import Progress, compare
from isochrone.simulate.autoscaling.courses import COURSES
from isochrone.simulate.autoscaling.pool import PoolSettings
from isochrone.simulate.autoscaling.tables import table
from isochrone.suggestions import suggestion

# \b keeps the lines below it as they are.
EPILOG = """
\b
Examples:
  isochrone simulate autoscaling --course flash_crowd
  isochrone simulate autoscaling --course flash_crowd --course step --warm 2
  isochrone simulate autoscaling --seed 1 --seeds 5 --json

The same seeds give the same figures. All courses of one seed take a minute or two. docs/autoscaling.md describes the
courses and the algorithms.
"""


def autoscaling_command(
    course: Annotated[
        list[str] | None, typer.Option(help=f"Course of load: {', '.join(COURSES)}; all by default. May be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="First seed.", min=0)] = 1,
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 1,
    warm: Annotated[
        int, typer.Option(help="Standby workers, which serve at once; for every algorithm, and paid for.", min=0)
    ] = 0,
    json_out: Annotated[bool, typer.Option("--json/--no-json", help="Print figures as JSON.")] = False,
) -> None:
    """Run autoscaling algorithms on the same load; print SLO violations, worker-hours and changes of direction."""
    names = list(dict.fromkeys(course or COURSES))
    try:
        for name in names:
            if name not in COURSES:
                raise ConfigError("--course", name, suggestion(name, list(COURSES), "course"), name)
    except IsochroneError as error:
        typer.secho(f"isochrone simulate autoscaling: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    errors = Console(stderr=True)
    status: AbstractContextManager[Status | None] = errors.status("") if errors.is_terminal else nullcontext()
    with status as shown:
        comparisons = compare(names, range(seed, seed + seeds), PoolSettings(warm=warm), _progress(shown))
    if json_out:
        figures = {
            "seed": seed,
            "seeds": seeds,
            "warm": warm,
            "courses": [comparison.figures() for comparison in comparisons],
        }
        typer.echo(json.dumps(figures, indent=2))
        return
    console = Console()
    console = Console(width=max(console.width, 150))
    console.print(table(comparisons, seeds))


def _progress(status: Status | None) -> Progress | None:
    if status is None:
        return None
    return lambda course, algorithm, seed: status.update(f"{course}, {algorithm}, seed {seed}")
