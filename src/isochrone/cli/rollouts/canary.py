"""``isochrone canary``: new versions under evaluation on a part of the traffic."""

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
from isochrone.cli.rollouts.rollout import WaitOption, abort_rollout
from isochrone.cli.rollouts.view import changes_text, picture
from isochrone.control.api.messages import Rollouts
from isochrone.control.state.rollout_records import CANARY, RolloutRecord

STATUS_EPILOG = """
\b
Examples:
  isochrone canary status
  isochrone canary status --json
"""
PROMOTE_EPILOG = """
\b
Examples:
  isochrone canary promote
  isochrone canary promote r7

The new version is committed for all traffic now, whatever its figures.
"""
ABORT_EPILOG = """
\b
Examples:
  isochrone canary abort
  isochrone canary abort r7 --reason "operators saw wrong boxes"
"""

IdentityArgument = Annotated[
    str | None, typer.Argument(metavar="ID", help="The rollout. [default: the one in canary]", show_default=False)
]

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Evaluate new versions on a part of traffic.",
)


@app.callback()
def main() -> None:
    """Evaluate new versions on a part of traffic."""


@app.command(epilog=STATUS_EPILOG)
def status(api: ApiOption = DEFAULT_API, as_json: JsonOption = False) -> None:
    """Show the rollouts in canary: step and figures."""
    with failing_as("canary status"), ApiClient(api) as client:
        found = _in_canary(client)
        console = make_console()
        if as_json:
            print_json(Rollouts(tuple(found)))
        elif not found:
            console.print("No rollout is in canary.")
        else:
            for record in found:
                console.print(picture(record, time.time()))


@app.command(epilog=PROMOTE_EPILOG)
def promote(identity: IdentityArgument = None, api: ApiOption = DEFAULT_API, as_json: JsonOption = False) -> None:
    """Commit a new version for all traffic now."""
    with failing_as("canary promote"), ApiClient(api) as client:
        chosen = identity or _the_one(client)
        record = client.send("POST", f"/v1/rollouts/{part(chosen)}/promote", RolloutRecord)
        if as_json:
            print_json(record)
        else:
            typer.echo(f"{record.identity} is promoted: {changes_text(record)}")


@app.command(epilog=ABORT_EPILOG)
def abort(
    identity: IdentityArgument = None,
    reason: Annotated[str, typer.Option(help="The reason, stored with the rollout.")] = "",
    wait: WaitOption = True,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Abort a canary: the new version gets no traffic."""
    with failing_as("canary abort"), ApiClient(api) as client:
        abort_rollout(client, identity or _the_one(client), reason, wait, as_json)


def _in_canary(client: ApiClient) -> list[RolloutRecord]:
    return [record for record in client.get("/v1/rollouts", Rollouts).rollouts if record.state == CANARY]


def _the_one(client: ApiClient) -> str:
    found = _in_canary(client)
    if not found:
        raise ApiFailed("no rollout is in canary")
    if len(found) > 1:
        raise ApiFailed(f"several rollouts are in canary; name one: {', '.join(each.identity for each in found)}")
    return found[0].identity
