"""``isochrone rollout``: start, watch, abort and roll back changes of model versions."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from isochrone.cli.api_client import (
    DEFAULT_API,
    ApiClient,
    ApiFailed,
    ApiOption,
    JsonOption,
    failing_as,
    part,
    print_json,
)
from isochrone.cli.console import make_console
from isochrone.cli.rollouts.view import changes_text, listing, picture
from isochrone.cli.rollouts.watching import watch_rollout
from isochrone.control.api.messages import AbortRequest, RolloutRequest, Rollouts
from isochrone.control.state.rollout_records import ABORTED, DONE, RolloutRecord

START_EPILOG = """
\b
Examples:
  isochrone rollout start detector=2
  isochrone rollout start detector=2 tracker=5 --cutover strict
  isochrone rollout start detector=2 --no-canary --no-wait

All models change at once, or none does. Ctrl-C stops watching, not the rollout. The exit status is 1 if it is aborted.
"""
STATUS_EPILOG = """
\b
Examples:
  isochrone rollout status
  isochrone rollout status r7
  isochrone rollout status r7 --json
"""
LIST_EPILOG = """
\b
Examples:
  isochrone rollout list
  isochrone rollout list --limit 5
  isochrone rollout list --json
"""
ABORT_EPILOG = """
\b
Examples:
  isochrone rollout abort r7
  isochrone rollout abort r7 --reason "wrong artifact"
"""
ROLLBACK_EPILOG = """
\b
Examples:
  isochrone rollout rollback detector

Models that changed together go back together. While a new version is in canary, it is aborted instead.
"""

WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Watch it until it is over.")]
#: Rollouts that are listed.
_LISTED = 20

app = typer.Typer(
    rich_markup_mode=None, add_completion=False, no_args_is_help=True, help="Change model versions atomically."
)


@app.callback()
def main() -> None:
    """Change model versions atomically."""


@app.command(epilog=START_EPILOG)
def start(
    changes: Annotated[
        list[str], typer.Argument(metavar="MODEL=VERSION", help="The version that each model is to serve.")
    ],
    cutover: Annotated[
        str | None, typer.Option(help="fast or strict.", show_default="as fleet.yaml says", metavar="MODE")
    ] = None,
    canary: Annotated[
        bool | None,
        typer.Option(
            "--canary/--no-canary", help="Evaluate it on a part of traffic.", show_default="as fleet.yaml says"
        ),
    ] = None,
    compare: Annotated[
        bool | None,
        typer.Option("--compare/--no-compare", help="Compare outputs first.", show_default="as fleet.yaml says"),
    ] = None,
    wait: WaitOption = True,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Start a rollout and watch it."""
    with failing_as("rollout start"), ApiClient(api) as client:
        request = RolloutRequest(_changes(changes), cutover, canary, compare)
        record = client.send("POST", "/v1/rollouts", RolloutRecord, request)
        _finish(client, record, DONE, wait, as_json)


@app.command(epilog=STATUS_EPILOG)
def status(
    identity: Annotated[str | None, typer.Argument(metavar="ID", help="A rollout. [default: the latest]")] = None,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Show the latest rollouts, or one in full."""
    with failing_as("rollout status"), ApiClient(api) as client:
        if identity is not None:
            record = client.get(f"/v1/rollouts/{part(identity)}", RolloutRecord)
            print_json(record) if as_json else make_console().print(picture(record, time.time()))
            return
        _list(client, _LISTED, as_json)


@app.command("list", epilog=LIST_EPILOG)
def list_rollouts(
    limit: Annotated[int, typer.Option(help="How many of the latest.", min=1)] = _LISTED,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """List the latest rollouts, the newest last."""
    with failing_as("rollout list"), ApiClient(api) as client:
        _list(client, limit, as_json)


@app.command(epilog=ABORT_EPILOG)
def abort(
    identity: Annotated[str, typer.Argument(metavar="ID", help="The rollout.", show_default=False)],
    reason: Annotated[str, typer.Option(help="The reason, stored with the rollout.")] = "",
    wait: WaitOption = True,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Abort a rollout: the new version gets no traffic."""
    with failing_as("rollout abort"), ApiClient(api) as client:
        abort_rollout(client, identity, reason, wait, as_json)


@app.command(epilog=ROLLBACK_EPILOG)
def rollback(
    model: Annotated[str, typer.Argument(help="The model.", show_default=False)],
    wait: WaitOption = True,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Go back to the previous version."""
    with failing_as("rollout rollback"), ApiClient(api) as client:
        record = client.send("POST", f"/v1/models/{part(model)}/rollback", RolloutRecord)
        _finish(client, record, DONE if record.kind == "rollback" else ABORTED, wait, as_json)


def abort_rollout(client: ApiClient, identity: str, reason: str, wait: bool, as_json: bool) -> None:
    record = client.send("POST", f"/v1/rollouts/{part(identity)}/abort", RolloutRecord, AbortRequest(reason))
    _finish(client, record, ABORTED, wait, as_json)


def _list(client: ApiClient, limit: int, as_json: bool) -> None:
    found = client.get("/v1/rollouts", Rollouts).rollouts[-limit:]
    if as_json:
        print_json(Rollouts(found))
    elif found:
        make_console().print(listing(found))
    else:
        typer.echo("No rollout yet. Start one with: isochrone rollout start MODEL=VERSION")


def _finish(client: ApiClient, record: RolloutRecord, wanted: str, wait: bool, as_json: bool) -> None:
    """Watch it if ``wait``; exit with status 1 if it ended in another state than ``wanted``."""
    console = make_console()
    if wait:
        record = watch_rollout(client, record.identity, console, quiet=as_json)
    if as_json:
        print_json(record)
    elif not wait:
        console.print(f"{record.identity} {record.kind}: {changes_text(record)}", markup=False, soft_wrap=True)
        console.print(f"Watch it with: isochrone rollout status {record.identity}")
    if record.is_over and record.state != wanted:
        raise typer.Exit(1)


def _changes(words: list[str]) -> dict[str, str]:
    changes: dict[str, str] = {}
    for word in words:
        model, equals, version = word.partition("=")
        if not (model and equals and version):
            raise ApiFailed(f"expected MODEL=VERSION, given '{word}'")
        if model in changes:
            raise ApiFailed(f"{model}: expected once, given twice")
        changes[model] = version
    return changes
