"""``isochrone logs``: print the logs of a fleet's processes, from the files of this machine or through Ray."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from isochrone.cli.api_client import ApiFailed, JsonOption, failing_as
from isochrone.cli.fleet.inspecting.ray_logs import ray_tails
from isochrone.cli.last_fleet import last_fleet
from isochrone.engines.local.log_reading import LogReader, log_files
from isochrone.suggestions import suggestion

EPILOG = """
\b
Examples:
  isochrone logs
  isochrone logs cpu-1 --lines 100
  isochrone logs gw-1 --follow
  isochrone logs --state ./isochrone-state --json

Shows the fleet that was started last on this machine with 'isochrone up', or the one in --state. For a fleet on Ray,
the last lines come from the nodes; to follow a process, use --state on its node.
"""

#: Where ``isochrone up`` without a file keeps its fleet.
_USUAL = Path("isochrone-state")
#: Seconds between two reads of the files.
_PAUSE = 0.25

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def logs(
    process: Annotated[
        str | None, typer.Argument(metavar="PROCESS", help="A worker, gateway or controller. [default: all]")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as they come.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Number of the last lines of each process.", min=0)] = 20,
    state: Annotated[
        Path | None,
        typer.Option(help="The fleet's state directory.", show_default="of the fleet last started here"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the logs of a fleet's processes. With --json, one object per line."""
    with failing_as("logs"):
        last = last_fleet()
        if state is None and last is not None and last.ray:
            if follow:
                raise ApiFailed(
                    "--follow: expected a fleet of this machine, given one on Ray; on the node of a process, use "
                    f"isochrone logs --follow --state RAY_DIRECTORY/session_latest/logs/isochrone/{last.name}"
                )
            tails = ray_tails(last.name, last.ray, process, lines)
            width = max(map(len, tails)) if process is None else 0
            for name, tail in tails.items():
                _print(name, tail, width, as_json)
            return
        directory = _directory(state)
        readers = {name: LogReader(path) for name, path in _wanted(directory, process).items()}
        width = max(map(len, readers)) if process is None else 0
        for name, reader in readers.items():
            _print(name, reader.tail(lines), width, as_json)
        while follow:
            time.sleep(_PAUSE)
            if process is None:
                # All lines of a process that has started since are new.
                readers |= {name: LogReader(path) for name, path in log_files(directory).items() if name not in readers}
                width = max(map(len, readers))
            for name, reader in readers.items():
                _print(name, reader.news(), width, as_json)


def _directory(state: Path | None) -> Path:
    if state is not None:
        places = [state / "logs", state / "state" / "logs"]
    else:
        last = last_fleet()
        places = [Path(last.state) / "logs"] if last is not None else [_USUAL / "state" / "logs"]
    for place in places:
        if log_files(place):
            return place
    raise ApiFailed(
        f"no log files in {' or '.join(map(str, places))}; start a fleet with 'isochrone up', or name the directory of "
        "its state with --state"
    )


def _wanted(directory: Path, process: str | None) -> dict[str, Path]:
    found = log_files(directory)
    if process is None:
        return found
    if process not in found:
        raise ApiFailed(f"process '{process}': expected {suggestion(process, list(found), 'process')} in {directory}")
    return {process: found[process]}


def _print(name: str, lines: list[str], width: int, as_json: bool) -> None:
    for line in lines:
        if as_json:
            typer.echo(json.dumps({"process": name, "line": line}))
        else:
            typer.echo(f"{name:<{width}} | {line}" if width else line)
