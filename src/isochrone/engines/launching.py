"""What must be settled before a supervisor can start processes: which fleet, whose state, free ports, one supervisor.

``isochrone up FILE`` applies the file as ``isochrone apply`` would; without a file, what was applied last goes on.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from isochrone.control.fleet.bundled import write_bundled
from isochrone.control.fleet.file import lost_versions, read_file
from isochrone.control.fleet.local_ports import FREE, fixed_ports, port_problems
from isochrone.control.fleet.passwords import without_password
from isochrone.control.fleet.processes import store_url
from isochrone.control.fleet.reading import fleet_of, load_fleet, read_text
from isochrone.control.fleet.spec import Fleet
from isochrone.control.requests.decisions import RequestContext
from isochrone.control.requests.fleet import apply_fleet
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import FleetRecord
from isochrone.control.state.view import View
from isochrone.errors import AlreadyExists, ConfigError, Unavailable
from isochrone.settings.problems import SettingsError, settings_error
from isochrone.store.base import Store
from isochrone.store.etcd.address import PASSWORD_VARIABLE, split_password

#: Who applied a file that ``isochrone up`` was given.
_WHO = "isochrone up"
#: Seconds to wait for ports that processes of a supervisor before this one may be about to give back.
_PORT_SECONDS = 3.0
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Launch:
    """A fleet that is to be started."""

    fleet: Fleet
    text: str
    #: Of the file: what its relative paths are of.
    directory: Path
    #: Names the file in errors.
    where: str
    #: Logs and the lock are here.
    state: Path
    #: Whether the file is applied even if the store holds a fleet already.
    applies: bool

    @property
    def store_url(self) -> str:
        return store_url(self.fleet, self.directory)

    @property
    def environment(self) -> dict[str, str]:
        """What its processes must know and their command lines must not show."""
        _, password = split_password(self.store_url)
        return {PASSWORD_VARIABLE: password} if password else {}


def launch_of_file(path: Path, state: Path | None = None) -> Launch:
    """``isochrone up FILE``."""
    directory = Path(os.path.abspath(path)).parent
    try:
        fleet = load_fleet(path)
    except SettingsError:
        # All that is wrong in one go, the repositories included.
        read_file(read_text(path), str(path), directory)
        raise
    return Launch(
        fleet, path.read_text(encoding="utf-8"), directory, str(path), state or _state_of(fleet, directory), True
    )


def launch_of_state(root: Path) -> Launch:
    """``isochrone up`` without a file: the fleet in a directory; the bundled one is written there if there is none."""
    path = root / "fleet.yaml"
    if not path.exists():
        try:
            write_bundled(root)
        except OSError as error:
            raise ConfigError("--state", "directory", "one that can be written to", str(error)) from None
    launch = launch_of_file(path)
    return Launch(launch.fleet, launch.text, launch.directory, launch.where, launch.state, False)


def _state_of(fleet: Fleet, directory: Path) -> Path:
    """Beside the store's file, so that one store has one lock, however the fleet is named on the command line."""
    scheme, _, path = store_url(fleet, directory).partition(":")
    return Path(path).parent if scheme == "sqlite" else directory / "state"


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Only one supervisor at a time has a state; the lock goes with the process."""
    path = state / "supervisor.lock"
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError("--state", "directory", "one that can be written to", str(error)) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise AlreadyExists(
                f"this fleet is up already, by process {pid}; change it with 'isochrone apply', or stop that process"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


async def record_of(
    store: Store,
    launch: Launch,
    agrees: bool = False,
    check: Callable[[FleetRecord, str], Awaitable[None]] | None = None,
) -> tuple[FleetRecord, FleetRecord | None]:
    """The fleet record to go by, written if need be, and the one before it. Raises ``StoreUnavailable``.

    ``agrees``: the user agrees to whatever the file takes away. ``check`` may refuse the record before it is written.
    """
    keys = Keys(launch.fleet.name)
    for _ in range(_ATTEMPTS):
        view = View(keys, (await store.list(keys.prefix)).entries)
        before = view.fleet
        if before is not None and (not launch.applies or _says_the_same(before, launch)):
            if check is not None:
                await check(before, launch.where)
            return before, before
        # A model or version that is not there is told now, not by a rollout that fails later.
        file = read_file(launch.text, launch.where, launch.directory)
        lost = lost_versions(file, before, view.assignments)
        context = RequestContext(_WHO, time.time(), secrets.token_hex(4))
        decision = apply_fleet(view, file, context, agreed=agrees, lost=lost)
        if check is not None:
            await check(decision.answer.record, launch.where)
        if not decision.operations or (await store.transact(decision.compares, decision.operations)).succeeded:
            return decision.answer.record, before
    raise Unavailable(f"the fleet record changed {_ATTEMPTS} times while the file was applied; try again")


def _says_the_same(record: FleetRecord, launch: Launch) -> bool:
    """A file that was applied already is not applied again: it would undo rollouts made since."""
    fleet, text = without_password(launch.fleet, launch.text)
    spec = fleet.model_dump(mode="json")
    return (record.text, record.spec, record.directory) == (text, spec, str(launch.directory))


async def check_ports(record: FleetRecord, where: str) -> None:
    """Raises ``SettingsError`` for all ports that others have: it names the keys to change."""
    ports = list(fixed_ports(fleet_of(record.spec)))
    ends = time.monotonic() + _PORT_SECONDS
    while problems := port_problems(ports):
        if time.monotonic() >= ends or any(each.expected != FREE for each in problems):
            raise settings_error(problems, where, None)
        await asyncio.sleep(0.1)
