"""``isochrone up``: run a whole fleet on this machine in the foreground."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from isochrone.cli.fleet.next_steps import last_fleet_of, next_steps
from isochrone.cli.last_fleet import LastFleet, remember
from isochrone.control.fleet.reading import fleet_of
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import FleetRecord
from isochrone.engines.base import Exit
from isochrone.engines.launching import (
    Launch,
    check_ports,
    launch_of_file,
    launch_of_state,
    record_of,
    single_supervisor,
)
from isochrone.engines.local.engine import LocalEngine
from isochrone.engines.local.log_files import LogFiles
from isochrone.engines.supervision.listen_errors import by_fleet_key
from isochrone.engines.supervision.progress import exit_lines
from isochrone.engines.supervision.supervisor import Supervisor, desired_processes
from isochrone.errors import ConfigError, IsochroneError
from isochrone.observe import logs as observed_logs
from isochrone.stop_signals import stop_signals
from isochrone.store.opening import open_store

EPILOG = """
\b
Examples:
  isochrone up
  isochrone up fleet.yaml
  isochrone up --state ./my-first-fleet

Without a file, the fleet in ./isochrone-state is started in its last state; if there is none, the bundled fleet is
written there. With a file, the file is applied first, as by isochrone apply. Ctrl-C stops all processes and keeps the
state. Commands without --api or --url use the fleet that was started last on this machine.
"""

_ENGINES = ("local",)
_STATE = Path("isochrone-state")
#: Lines of the log that are shown if a process dies at its first start.
_LINES = 5
#: Lines at the end of a dead process's log that are searched for its error.
_LINES_OF_ERRORS = 20

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def up(
    fleet: Annotated[
        Path | None, typer.Argument(metavar="FLEET.yaml", help="The fleet, see docs/fleet.md.", show_default=False)
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Directory of a fleet without a file; with a file: where logs go.",
            show_default="./isochrone-state; beside the store's file",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help=f"Where processes run: {', '.join(_ENGINES)}.")] = "local",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Agree to what a changed file takes away: models, pools, addresses.")
    ] = False,
) -> None:
    """Start a whole fleet (controllers, gateways and workers) and keep it running as fleet.yaml describes."""
    try:
        if engine not in _ENGINES:
            raise ConfigError("--engine", "name", f"one of {', '.join(_ENGINES)}", repr(engine))
        launch = launch_of_file(fleet, state) if fleet is not None else launch_of_state(state or _STATE)
        # For events of the store, such as its loss; output for people is printed.
        observed_logs.configure()
        with single_supervisor(launch.state):
            uvloop.run(_run(launch, yes))
    except (IsochroneError, OSError) as error:
        typer.secho(f"isochrone up: {error}", fg="red", err=True)
        raise typer.Exit(1) from None


async def _run(launch: Launch, agreed: bool) -> None:
    stopping, hurry = _stop_events()
    store = open_store(launch.store_url, launch.directory)
    try:
        # A fleet that cannot be started is not applied.
        record, before = await record_of(store, launch, agreed, check_ports)
        _print_applied(launch, record, before)
        last = last_fleet_of(fleet_of(record.spec), launch.state)
        found = last if remember(last) else None
        files = LogFiles(launch.state / "logs")

        def last_lines(name: str, count: int) -> list[str]:
            fleet = fleet_of((supervisor.view.fleet or record).spec)
            return [by_fleet_key(line, name, fleet) for line in files.last_lines(name, count)]

        def ended(exit: Exit) -> None:
            # If a process fails at its first start, its last lines give the reason; later failures are in the log.
            name = exit.spec.name
            first = exit.status > 0 and supervisor.restarts_of(name) == 0
            for line in exit_lines(exit, str(files.path(name)), last_lines(name, _LINES) if first else ()):
                typer.secho(line, fg="yellow", err=True)

        supervisor = Supervisor(
            LocalEngine(files, environment=launch.environment),
            store,
            Keys(launch.fleet.name),
            typer.echo,
            ended,
            before=_names(before),
            last_lines=lambda name: last_lines(name, _LINES_OF_ERRORS),
        )
        work = asyncio.create_task(supervisor.run(stopping, hurry))
        shown = asyncio.create_task(_show_next_steps(supervisor, files, found))
        try:
            await work
        finally:
            shown.cancel()
            await asyncio.gather(shown, return_exceptions=True)
        typer.echo("stopped")
    finally:
        await store.close()


async def _show_next_steps(supervisor: Supervisor, files: LogFiles, last: LastFleet | None) -> None:
    await supervisor.up.wait()
    record = supervisor.view.fleet
    if record is not None:
        for line in next_steps(supervisor.view, record, files.directory, last):
            typer.echo(line)


def _stop_events() -> tuple[asyncio.Event, asyncio.Event]:
    """Events that the first and the second Ctrl-C, SIGTERM or SIGHUP set. After the second, nothing is waited for."""
    stopping, hurry = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            hurry.set()
        stopping.set()

    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return stopping, hurry


def _print_applied(launch: Launch, record: FleetRecord, before: FleetRecord | None) -> None:
    if before is None:
        typer.echo(f"fleet {launch.fleet.name} from {launch.where}")
    elif launch.applies and record.generation != before.generation:
        typer.echo(f"fleet {launch.fleet.name}: applied {launch.where} as generation {record.generation}")
    else:
        typer.echo(f"fleet {launch.fleet.name} continues at generation {record.generation}")
        if not launch.applies and launch.text != record.text:
            typer.echo(f"  {launch.where} has changed since; apply it with: isochrone up {launch.where}")


def _names(record: FleetRecord | None) -> tuple[str, ...]:
    try:
        return tuple(desired_processes(record)) if record is not None else ()
    except IsochroneError:
        return ()
