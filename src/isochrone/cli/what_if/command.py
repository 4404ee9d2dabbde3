"""``isochrone what-if``: what a fleet would do without a worker, with more load or with another policy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from isochrone.cli.api_client import DEFAULT_API, ApiClient, ApiOption, JsonOption, failing_as, print_json
from isochrone.cli.console import make_console
from isochrone.cli.what_if.view import answer_picture
from isochrone.control.api.messages import WhatIfRequest, in_full
from isochrone.control.what_if.answers import WhatIfAnswer
from isochrone.control.what_if.situation import Situation, read_situation
from isochrone.errors import FlagError

EPILOG = """
\b
Examples:
  isochrone what-if lose=worker-3
  isochrone what-if load=2 add=gpu:1
  isochrone what-if load=detector:1.5 policy=least_connections --json
  isochrone what-if --save-situation today.json
  isochrone what-if lose=worker-3 load=2 --situation today.json

Questions: lose=WORKER[,WORKER], load=FACTOR, load=MODEL:FACTOR, policy=NAME, add=POOL:WORKERS. Several are one changed
fleet. Nothing is changed: the controller simulates the fleet of today and the changed one with the gateways' rules, the
load of the last minute and the measured times of batches. 'measured' is what callers saw, beside 'today', its
simulation: where these two differ, take the change as a trend. docs/what-if.md has the limits.
"""

#: Seconds that a simulation in this process should take.
_BUDGET = 2.5

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def what_if(
    questions: Annotated[
        list[str] | None,
        typer.Argument(help="What changes: lose=, load=, policy=, add=.", show_default=False, metavar="QUESTION"),
    ] = None,
    situation: Annotated[
        Path | None,
        typer.Option(help="Answer for a saved situation, in this process, without a fleet.", show_default=False),
    ] = None,
    save_situation: Annotated[
        Path | None,
        typer.Option(help="Write the situation of the fleet to a file, as JSON.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.", min=0, max=2**31 - 1)] = 1,
    seconds: Annotated[
        float | None,
        typer.Option(help="Simulated seconds; by default as many as a few seconds suffice for.", min=0.001),
    ] = None,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Simulate the present fleet and a changed one: latency, missed deadlines and utilisation of both."""
    with failing_as("what-if"):
        if not questions and save_situation is None:
            raise FlagError("QUESTION", "lose=WORKER, load=FACTOR, policy=NAME or add=POOL:WORKERS", "none")
        if situation is not None and save_situation is not None:
            raise FlagError("--save-situation", "the fleet of a controller, not --situation", str(save_situation))
        found = None
        if situation is not None:
            found = _offline(situation, questions or [], seed, seconds)
        else:
            with ApiClient(api) as client:
                if save_situation is not None:
                    saved = client.get("/v1/what-if/situation", Situation)
                    save_situation.write_bytes(msgspec.json.format(msgspec.json.encode(in_full(saved))) + b"\n")
                if questions:
                    body = WhatIfRequest(tuple(questions), seed, seconds)
                    found = client.send("POST", "/v1/what-if", WhatIfAnswer, body)
        if found is None:
            return
        if as_json:
            print_json(found)
        else:
            make_console().print(answer_picture(found))


def _offline(path: Path, questions: list[str], seed: int, seconds: float | None) -> WhatIfAnswer:
    from isochrone.simulate.what_if.answering import Budget, answer  # it imports the simulator

    # A length that was asked for may take as long as it takes.
    budget = _BUDGET if seconds is None else float("inf")
    return answer(
        read_situation(path.read_bytes(), str(path)), questions, seed, seconds, Budget(time.monotonic, budget)
    )
