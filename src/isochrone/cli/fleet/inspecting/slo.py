"""``isochrone slo``: the error budgets of a fleet's models, from its own history."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import replace

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as, print_json
from isochrone.cli.console import make_console
from isochrone.cli.fleet.inspecting.slo_view import picture
from isochrone.control.api.messages import SloAnswer
from isochrone.control.figures.budget import NOT_COUNTED, SPENT
from isochrone.control.figures.objectives import LARGEST_OBJECTIVE, OBJECTIVE
from isochrone.errors import FlagError, NotFound
from isochrone.suggestions import suggestion

EPILOG = """
\b
Examples:
  isochrone slo
  isochrone slo detector --objective 99.9
  isochrone slo --check --json

A request is good if it was answered within slo.deadline_ms of fleet.yaml (200 ms for models without one). It is bad if
it was late, failed, or was rejected by the fault of the fleet. The budget is what the objective allows of the last 24
hours, as far as the history reaches. A burn of 1 spends exactly that.

The controllers count by themselves; no Prometheus is needed.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def slo(
    model: Annotated[str, typer.Argument(help="Only this model.", show_default=False)] = "",
    objective: Annotated[float, typer.Option(help="Percent of requests that must be good.")] = OBJECTIVE * 100,
    check: Annotated[
        bool, typer.Option("--check", help="End with status 1 if the budget of a model is spent or not counted.")
    ] = False,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Show the error budget of each model: share of good requests, burn rates, what is left and how long it lasts."""
    with failing_as("slo"):
        if not 0 < objective <= LARGEST_OBJECTIVE * 100:
            raise FlagError("--objective", f"a percentage above 0, up to {LARGEST_OBJECTIVE * 100:g}", f"{objective:g}")
        with ApiClient(api) as client:
            found = client.get("/v1/slo", SloAnswer, objective=objective / 100)
        if model:
            found = _only(found, model)
        if as_json:
            print_json(found)
        else:
            make_console().print(picture(found))
    if check and any(each.state in (SPENT, NOT_COUNTED) for each in found.models):
        raise typer.Exit(1)


def _only(found: SloAnswer, model: str) -> SloAnswer:
    chosen = tuple(each for each in found.models if each.model == model)
    if not chosen:
        known = [each.model for each in found.models]
        expected = suggestion(model, known, "model") if known else "none: no fleet.yaml is applied yet"
        raise NotFound(f"MODEL: expected {expected}, given '{model}'")
    return replace(found, models=chosen)
