"""``isochrone apply``: show the plan of a fleet file, and apply it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiFailed, ApiOption, JsonOption, failing_as, print_json
from isochrone.cli.console import make_console, table
from isochrone.cli.rollouts.waiting import starts_rollouts, wait_for_rollouts
from isochrone.control.api.messages import FleetRequest, PlanAnswer, Rollouts, in_full
from isochrone.control.fleet.reading.parsing import read_text
from isochrone.control.state.rollout_records import DONE

EPILOG = """
\b
Examples:
  isochrone apply fleet.yaml
  isochrone apply fleet.yaml --dry-run
  isochrone apply fleet.yaml --yes --json
  isochrone apply fleet.yaml --yes --no-wait

Waits for the rollouts that the file starts, and exits with status 1 if one is aborted. Ctrl-C only stops the waiting.
Unchanged processes are not restarted. If another file was applied since the plan was shown, nothing is applied. Steps
that take something away (retire, interrupt) must be confirmed by typing a word, or with --yes. Without a terminal,
nothing is applied without --yes.
"""

_STYLES = {
    "start": "green",
    "rollout": "cyan",
    "change": "cyan",
    "restart": "yellow",
    "ignore": "yellow",
    "warn": "red",
    "stop": "red",
    "interrupt": "red",
    "retire": "red",
}
#: Steps that change nothing.
_NO_CHANGES = ("ignore", "warn")
#: The word that confirms a plan that takes something away.
_WORD = "retire"
#: Most steps that an error names.
_NAMED = 6

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def apply(
    file: Annotated[Path, typer.Argument(help="The fleet.yaml.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, and apply nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Agree to the whole plan without being asked.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for its rollouts to finish.")] = True,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Apply a fleet file."""
    with failing_as("apply"), ApiClient(api) as client:
        request = FleetRequest(read_text(file), str(file.resolve().parent), str(file))
        plan = client.send("PUT", "/v1/fleet", PlanAnswer, request, dry_run=1)
        if not as_json:
            _print(plan)
        if dry_run:
            if as_json:
                print_json(plan)
            return
        taken = tuple(f"{step.kind} {step.name}" for step in plan.steps if step.action in ("retire", "interrupt"))
        if not yes and any(step.action not in _NO_CHANGES for step in plan.steps):
            _ask(plan, taken)
        # Apply exactly the plan that was shown, or nothing.
        request = FleetRequest(request.text, request.directory, request.file, plan.generation, taken)
        before = [each.identity for each in client.get("/v1/rollouts", Rollouts).rollouts]
        applied = client.send("PUT", "/v1/fleet", PlanAnswer, request)
        _finish(client, applied, before, wait and starts_rollouts(applied), as_json)


def _finish(client: ApiClient, applied: PlanAnswer, before: list[str], wait: bool, as_json: bool) -> None:
    """Wait for the rollouts if ``wait``; exit with status 1 if one was aborted."""
    if not as_json:
        typer.echo(f"Applied as generation {applied.generation}.{'' if wait else ' Watch it with: isochrone status'}")
    ended = wait_for_rollouts(client, applied.generation, before, make_console(), quiet=as_json) if wait else []
    if as_json:
        print_json({**in_full(applied), "rollouts": ended})
    if any(each.state != DONE for each in ended):
        raise typer.Exit(1)


def _ask(plan: PlanAnswer, taken: Sequence[str]) -> None:
    """Raise unless the user agrees at a terminal."""
    if not sys.stdin.isatty():
        raise ApiFailed(f"nothing was applied: there is no terminal to ask at. {_without_terminal(plan, taken)}")
    if taken:
        said = typer.prompt(
            f"This takes away {', '.join(taken)}. Type '{_WORD}' to agree", default="", show_default=False
        )
        agreed = said.strip().lower() == _WORD
    else:
        agreed = typer.confirm("Apply?", default=False)
    if not agreed:
        raise ApiFailed("nothing was applied")


def _without_terminal(plan: PlanAnswer, taken: Sequence[str]) -> str:
    if taken:
        return f"The plan takes away {', '.join(taken)}; agree to that with --yes"
    changes = [f"{step.action} {step.kind} {step.name}" for step in plan.steps if step.action not in _NO_CHANGES]
    more = f" and {len(changes) - _NAMED} more" if len(changes) > _NAMED else ""
    return f"The plan takes nothing away; it would {', '.join(changes[:_NAMED])}{more}; apply it with --yes"


def _print(plan: PlanAnswer) -> None:
    console = make_console()
    if not plan.steps:
        console.print("Nothing changes.")
        return
    shown = table(f"plan, from generation {plan.generation}", "action", "of", "name", "what")
    for step in plan.steps:
        shown.add_row(
            Text(step.action, style=_STYLES.get(step.action, "")), step.kind, Text(step.name), Text(step.detail)
        )
    console.print(shown)
