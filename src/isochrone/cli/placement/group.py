"""``isochrone placement``: which models should run on which workers, and why. Read-only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as, part, print_json
from isochrone.cli.console import make_console
from isochrone.cli.placement.view import explanation_picture, plan_picture
from isochrone.control.api.answers.placement import explained, planned, stated
from isochrone.control.api.messages import PlacementAnswer, PlacementExplanation
from isochrone.control.fleet.reading.file import read_file
from isochrone.control.fleet.reading.parsing import read_text
from isochrone.control.placement.fleet_inputs import PlacementInputs, of_file

PLAN_EPILOG = """
\b
Examples:
  isochrone placement plan --dry-run
  isochrone placement plan --dry-run fleet.yaml
  isochrone placement plan --without gpu-2
  isochrone placement plan fleet.yaml --rate detector=200 --run-ms detector=4 --json

This command only shows. In pools with "replicas: planned" the leader applies such plans by itself; in others, every
worker has all models of its pool. With a file, the plan begins with empty workers. Without one, it begins with the
present replicas of the running fleet. The exit status is 1 if a model fits nowhere.
"""
EXPLAIN_EPILOG = """
\b
Examples:
  isochrone placement explain detector
  isochrone placement explain detector --fleet fleet.yaml
  isochrone placement explain detector --without gpu-2 --json

Names each worker with the first rule that keeps the model off it. With --fleet, explains the plan of the file; without
it, the running fleet as it is.
"""

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Plan which models run on which workers, and explain it. Nothing is changed.",
)

RateOption = Annotated[
    list[str] | None, typer.Option("--rate", metavar="MODEL=NUMBER", help="Requests per second. May be repeated.")
]
RunOption = Annotated[
    list[str] | None,
    typer.Option("--run-ms", metavar="MODEL=NUMBER", help="Milliseconds of one run. May be repeated."),
]
WithoutOption = Annotated[
    list[str] | None, typer.Option("--without", metavar="WORKER", help="A worker that counts as lost. May be repeated.")
]


@app.command(epilog=PLAN_EPILOG)
def plan(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FLEET.yaml", help="A fleet.yaml. [default: the running fleet]", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, and apply nothing. This command always does so.")
    ] = True,
    rate: RateOption = None,
    run_ms: RunOption = None,
    without: WithoutOption = None,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Show the replicas that a fleet should have, and the moves that lead to them."""
    with failing_as("placement plan"):
        if file is not None:
            found = planned(_inputs(file, rate, run_ms, without))
        else:
            with ApiClient(api) as client:
                found = client.get("/v1/placement", PlacementAnswer, **_query(rate, run_ms, without))
        if as_json:
            print_json(found)
        else:
            make_console().print(plan_picture(found))
        if any(model.unplaced for model in found.models):
            raise typer.Exit(1)


@app.command(epilog=EXPLAIN_EPILOG)
def explain(
    model: Annotated[str, typer.Argument(help="The model.", show_default=False)],
    file: Annotated[
        Path | None, typer.Option("--fleet", metavar="FLEET.yaml", help="A fleet.yaml. [default: the running fleet]")
    ] = None,
    rate: RateOption = None,
    run_ms: RunOption = None,
    without: WithoutOption = None,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Explain why a model is on some workers and not on others."""
    with failing_as("placement explain"):
        if file is not None:
            found = explained(_inputs(file, rate, run_ms, without), model, after_plan=True)
        else:
            with ApiClient(api) as client:
                path = f"/v1/placement/models/{part(model)}"
                found = client.get(path, PlacementExplanation, **_query(rate, run_ms, without))
        if as_json:
            print_json(found)
        else:
            make_console().print(explanation_picture(found))


def _inputs(file: Path, rate: list[str] | None, run_ms: list[str] | None, without: list[str] | None) -> PlacementInputs:
    read = read_file(read_text(file), str(file), file.resolve().parent)
    return of_file(read.fleet, read.stages, stated(rate or [], run_ms or [], without or []))


def _query(rate: list[str] | None, run_ms: list[str] | None, without: list[str] | None) -> dict[str, list[str]]:
    given = {"rate": rate, "run_ms": run_ms, "without": without}
    return {name: values for name, values in given.items() if values}
