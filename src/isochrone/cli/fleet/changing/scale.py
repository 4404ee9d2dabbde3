"""``isochrone scale``: set the number of workers of a pool."""

from __future__ import annotations

from typing import Annotated

import typer

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as, part, print_json
from isochrone.cli.console import counted
from isochrone.control.api.messages import PlanAnswer, ScaleRequest

EPILOG = """
\b
Examples:
  isochrone scale cpu 4
  isochrone scale cpu 0 --yes

The number holds until a fleet.yaml is applied, and must be within the pool's min and max. Workers with the highest
numbers stop first. A pool without workers, or with drained ones only, needs --yes.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def scale(
    pool: Annotated[str, typer.Argument(help="The pool.", show_default=False)],
    workers: Annotated[int, typer.Argument(help="The number of workers.", min=0, show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Agree to a pool that serves nothing.")] = False,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Set the number of workers of a pool."""
    with failing_as("scale"), ApiClient(api) as client:
        plan = client.send("POST", f"/v1/pools/{part(pool)}/scale", PlanAnswer, ScaleRequest(workers, yes))
        if as_json:
            print_json(plan)
            return
        for step in plan.steps:
            typer.echo(f"{step.action} {step.kind} {step.name}: {step.detail}")
        if not plan.steps:
            typer.echo(f"pool {pool} has {counted(workers, 'worker')} already")
