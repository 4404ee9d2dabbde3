"""``isochrone up``: run a whole fleet in the foreground, on this machine, on a Ray cluster or on Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from isochrone.cli.fleet.changing.engine_choice import ENGINES, EngineChoice, chosen_engine
from isochrone.cli.fleet.changing.next_steps import last_fleet_of, next_steps
from isochrone.cli.last_fleet import LastFleet, last_fleet, remember
from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.fleet.reading.cautions import lockout
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import KUBERNETES, LOCAL, FleetRecord
from isochrone.control.state.view import View
from isochrone.engines.base import Engine, Exit
from isochrone.engines.fleet_seal import fleet_seal, next_seal
from isochrone.engines.launching import Launch, launch_of_file, launch_of_state, record_of, single_supervisor
from isochrone.engines.supervision.desired import desired_processes
from isochrone.engines.supervision.listen_errors import by_fleet_key
from isochrone.engines.supervision.progress import exit_lines
from isochrone.engines.supervision.supervisor import Supervisor
from isochrone.engines.supervisor_lease import PATIENCE, SupervisorLease
from isochrone.errors import AlreadyExists, InvalidArgument, IsochroneError
from isochrone.observe import logs as observed_logs
from isochrone.secure.access.document import load_access
from isochrone.stop_signals import stop_signals
from isochrone.store.opening import open_store

EPILOG = """
\b
Examples:
  isochrone up
  isochrone up fleet.yaml
  isochrone up --state ./my-first-fleet
  isochrone up fleet.yaml --engine ray --address 10.0.0.1:6379

Without a file, the fleet in ./isochrone-state is started in its last state; if there is none, the bundled fleet is
written there. With a file, the file is applied first, as by isochrone apply. Ctrl-C stops all processes and keeps the
state. Commands without --api or --url use the fleet that was started last on this machine.

With --engine ray, processes run on the nodes of a Ray cluster and go on if this command is killed; the next isochrone
up adopts them. With --engine kubernetes, each is a pod, and all go on when this command ends: it is meant to run in the
cluster (isochrone render kubernetes).
"""

#: Between two looks for an applied file.
_REMEMBER_SECONDS = 1.0
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
    engine: Annotated[str, typer.Option(help=f"Where processes run: {', '.join(ENGINES)}.")] = LOCAL,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With --engine ray: the cluster, as HOST:PORT or ray://HOST:PORT.",
            show_default="RAY_ADDRESS, or the cluster of this machine",
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            help="With --engine kubernetes: the file with the cluster's address and credentials.",
            show_default="KUBECONFIG, ~/.kube/config, or the pod's service account",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Agree to what a changed file takes away: models, pools, addresses.")
    ] = False,
) -> None:
    """Start a whole fleet (controllers, gateways and workers) and keep it running as fleet.yaml describes."""
    try:
        # Without its engine, a fleet leaves nothing behind.
        with chosen_engine(engine, address, kubeconfig) as choice:
            launch = _launch(fleet, state, choice)
            choice.check_launch(launch)
            # For events of the store, such as its loss; output for people is printed.
            observed_logs.configure()
            with single_supervisor(launch.state):
                uvloop.run(_run(launch, yes, choice))
    except (IsochroneError, OSError) as error:
        typer.secho(f"isochrone up: {error}", fg="red", err=True)
        raise typer.Exit(1) from None


def _launch(fleet: Path | None, state: Path | None, choice: EngineChoice) -> Launch:
    if fleet is not None:
        return launch_of_file(fleet, state)
    root = state or _STATE
    if choice.name == KUBERNETES and not (root / "fleet.yaml").exists():
        raise InvalidArgument(
            "--engine kubernetes: name a FLEET.yaml whose store is etcd; "
            "the bundled fleet has a SQLite file, which pods cannot share"
        )
    return launch_of_state(root)


async def _run(launch: Launch, agreed: bool, choice: EngineChoice) -> None:
    stopping, hurry = _stop_events()
    store = open_store(launch.store_url, launch.directory, fleet_seal(launch.fleet, launch.directory))
    # A store in a file serves one machine, and the lock of the state directory suffices.
    lease = SupervisorLease(store, Keys(launch.fleet.name)) if not store.url.startswith("sqlite:") else None
    try:
        if lease is not None and not await _is_supervisor(lease, choice, stopping):
            return
        # A fleet that cannot be started is not applied.
        record, before = await record_of(store, launch, agreed, choice.check, choice.name)
        check_access(record)
        _print_applied(launch, record, before)
        last = last_fleet_of(fleet_of(record.spec), launch.state, Path(record.directory), choice.ray)
        found = last if remember(last) else None

        def present() -> Fleet:
            return fleet_of((supervisor.view.fleet or record).spec)

        def desired(now: FleetRecord, view: View, sizes: Mapping[str, int]) -> Mapping[str, ProcessSpec]:
            # Before the first process has the new key: all of them read what is sealed with it.
            store.seal = next_seal(store.seal, fleet_of(now.spec), Path(now.directory))
            return desired_processes(now, view, sizes)

        engine = choice.make(launch, present)

        def last_lines(name: str, count: int) -> list[str]:
            return [by_fleet_key(line, name, present()) for line in engine.last_lines(name, count)]

        def ended(exit: Exit) -> None:
            # If a process fails at its first start, its last lines give the reason; later failures are in the log.
            name = exit.spec.name
            first = exit.status > 0 and supervisor.restarts_of(name) == 0
            for line in exit_lines(exit, engine.log_place(name), last_lines(name, _LINES) if first else ()):
                typer.secho(line, fg="yellow", err=True)

        supervisor = Supervisor(
            engine,
            store,
            Keys(launch.fleet.name),
            typer.echo,
            ended,
            desired,
            before=_names(before),
            last_lines=lambda name: last_lines(name, _LINES_OF_ERRORS),
            outlived=choice.outlived,
        )
        work = asyncio.create_task(supervisor.run(stopping, hurry))
        others = [asyncio.create_task(_show_next_steps(supervisor, engine, launch, choice, found))]
        if found is not None:
            others.append(asyncio.create_task(_keep_remembered(supervisor, launch, choice, found)))
        if lease is not None:
            others.append(asyncio.create_task(_give_way(lease, supervisor, stopping)))
        try:
            await work
        finally:
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        if lease is not None and lease.successor:
            raise AlreadyExists(f"gave way to {lease.successor}, which supervises this fleet now")
        typer.echo("stopped; the fleet goes on" if choice.outlived else "stopped")
    finally:
        if lease is not None:
            await lease.release()
        await store.close()


async def _is_supervisor(lease: SupervisorLease, choice: EngineChoice, stopping: asyncio.Event) -> bool:
    """False: the command was stopped while another supervisor ran the fleet."""

    def waits(other: str) -> None:
        typer.echo(f"waiting for {other}, which supervises this fleet")

    # Where processes outlive it, a second supervisor is of use: it stands by.
    taking = asyncio.create_task(lease.take(waits, None if choice.outlived else PATIENCE))
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait((taking, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not taking.done():
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        return False
    taking.result()
    return True


async def _give_way(lease: SupervisorLease, supervisor: Supervisor, stopping: asyncio.Event) -> None:
    await lease.taken.wait()
    supervisor.give_way()
    stopping.set()


async def _keep_remembered(supervisor: Supervisor, launch: Launch, choice: EngineChoice, last: LastFleet) -> None:
    """An applied file may change how commands reach the fleet. Those of a fleet that was started later stay."""
    while True:
        await asyncio.sleep(_REMEMBER_SECONDS)
        record = supervisor.view.fleet
        if record is None:
            continue
        now = last_fleet_of(fleet_of(record.spec), launch.state, Path(record.directory), choice.ray)
        present = last_fleet()
        if choice.ray or present is None or present.state != last.state:
            continue
        if now != present:
            remember(now)


async def _show_next_steps(
    supervisor: Supervisor, engine: Engine, launch: Launch, choice: EngineChoice, last: LastFleet | None
) -> None:
    await supervisor.up.wait()
    view, record = supervisor.view, supervisor.view.fleet
    if record is None:
        return
    # Machines that the engine chose are known now.
    running = sorted(engine.running().items())
    host = next((each.host for _, each in running if each.spec.role == "controller"), "")
    if choice.ray and last is not None and view.gateways:
        gateway = next(iter(view.gateways.values())).url
        last = last_fleet_of(fleet_of(record.spec), launch.state, Path(record.directory), choice.ray, gateway, host)
        remember(last)
    for line in next_steps(view, record, choice.logs(launch), last, host):
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


def check_access(record: FleetRecord) -> None:
    """Raises ``SettingsError`` for an access file with which a controller would end again and again.

    An applied file was checked; a fleet that continues has perhaps another one by now.
    """
    name = fleet_of(record.spec).security.access
    if name is not None and (path := absolute(name, Path(record.directory))).is_file():
        load_access(path)


def _print_applied(launch: Launch, record: FleetRecord, before: FleetRecord | None) -> None:
    if before is None:
        typer.echo(f"fleet {launch.fleet.name} from {launch.where}")
    elif launch.applies and record.generation != before.generation:
        typer.echo(f"fleet {launch.fleet.name}: applied {launch.where} as generation {record.generation}")
    else:
        typer.echo(f"fleet {launch.fleet.name} continues at generation {record.generation}")
        if not launch.applies and launch.text != record.text:
            typer.echo(f"  {launch.where} has changed since; apply it with: isochrone up {launch.where}")
    if warning := lockout(fleet_of(record.spec), Path(record.directory)):
        typer.secho(f"  security.access: {warning}", fg="yellow", err=True)


def _names(record: FleetRecord | None) -> tuple[str, ...]:
    try:
        return tuple(desired_processes(record)) if record is not None else ()
    except IsochroneError:
        return ()
