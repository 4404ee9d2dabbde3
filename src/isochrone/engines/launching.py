"""Prepares the start of a fleet: which file, which state directory, one supervisor, free ports.

``isochrone up FILE`` applies the file as ``isochrone apply`` would; without a file, the fleet that was applied last
continues.
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

import msgspec

from isochrone.control.fleet.bundled.writing import write_bundled
from isochrone.control.fleet.derived.locations import store_url
from isochrone.control.fleet.reading.file import lost_versions, read_file
from isochrone.control.fleet.reading.local_ports import FREE, fixed_ports, port_problems
from isochrone.control.fleet.reading.parsing import fleet_of, load_fleet, read_text
from isochrone.control.fleet.reading.passwords import without_password
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.requests.decisions import RequestContext
from isochrone.control.requests.fleet import apply_fleet
from isochrone.control.state.codec import encode
from isochrone.control.state.foreign import check_seals
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import BY_ADDRESS
from isochrone.control.state.records import KUBERNETES, LOCAL, FleetRecord
from isochrone.control.state.view import View
from isochrone.errors import AlreadyExists, FlagError, Unavailable
from isochrone.settings.problems import SettingsError, settings_error
from isochrone.store.base import Put, Store
from isochrone.store.etcd.address import PASSWORD_VARIABLE, split_password

#: The author of a file that ``isochrone up`` applies.
_WHO = "isochrone up"
#: Seconds to wait for ports that the processes of an earlier supervisor may be about to release.
_PORT_SECONDS = 3.0
_ATTEMPTS = 10
#: Processes that an error names.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Launch:
    """A fleet to start."""

    fleet: Fleet
    text: str
    #: The directory of the file, which its relative paths refer to.
    directory: Path
    #: Names the file in errors.
    where: str
    #: The directory of logs and of the lock.
    state: Path
    #: Whether the file is applied even if the store already has a fleet.
    applies: bool

    @property
    def store_url(self) -> str:
        return store_url(self.fleet, self.directory)

    @property
    def environment(self) -> dict[str, str]:
        """What its processes need and their command lines must not show."""
        _, password = split_password(self.store_url)
        return {PASSWORD_VARIABLE: password} if password else {}


def launch_of_file(path: Path, state: Path | None = None) -> Launch:
    """``isochrone up FILE``."""
    directory = Path(os.path.abspath(path)).parent
    try:
        fleet = load_fleet(path)
    except SettingsError:
        # Report all errors at once, including those of the repositories.
        read_file(read_text(path), str(path), directory)
        raise
    return Launch(
        fleet, path.read_text(encoding="utf-8"), directory, str(path), state or _state_of(fleet, directory), True
    )


def launch_of_state(root: Path) -> Launch:
    """``isochrone up`` without a file: the fleet in a directory; the bundled fleet is written there if it is empty."""
    path = root / "fleet.yaml"
    if not path.exists():
        try:
            write_bundled(root)
        except OSError as error:
            raise FlagError("--state", "a directory that can be written", str(error)) from None
    launch = launch_of_file(path)
    return Launch(launch.fleet, launch.text, launch.directory, launch.where, launch.state, False)


def _state_of(fleet: Fleet, directory: Path) -> Path:
    """Beside the store's file, so that each store has one lock, whatever path the command line names."""
    scheme, _, path = store_url(fleet, directory).partition(":")
    return Path(path).parent if scheme == "sqlite" else directory / "state"


@contextmanager
def single_supervisor(state: Path) -> Iterator[None]:
    """Hold the lock of a state directory: one supervisor at a time. The kernel releases it with the process."""
    path = state / "supervisor.lock"
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise FlagError("--state", "a directory that can be written", str(error)) from None
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
    agreed: bool = False,
    check: Callable[[FleetRecord, str], Awaitable[None]] | None = None,
    engine: str = LOCAL,
) -> tuple[FleetRecord, FleetRecord | None]:
    """The fleet record, written if need be, and the one before it. Raise ``StoreUnavailable``.

    ``agreed``: the user agrees to everything that the file takes away. ``check`` may reject the record before it is
    written. ``engine``: the one that runs the processes from now on; ``FlagError`` if another one still does.
    """
    keys = Keys(launch.fleet.name)
    for _ in range(_ATTEMPTS):
        view = View(keys, (await store.list(keys.prefix)).entries)
        check_seals(view, store.url)
        before = view.fleet
        _check_engine(view, engine)
        if before is not None and (not launch.applies or _is_applied(before, launch)):
            record = msgspec.structs.replace(before, engine=engine)
            if check is not None:
                await check(record, launch.where)
            if record == before:
                return before, before
            written = await store.transact((view.unchanged(keys.fleet),), (Put(keys.fleet, encode(record)),))
            if written.succeeded:
                return record, before
            continue
        # A missing model or version is reported now, not by a rollout that fails later.
        file = read_file(launch.text, launch.where, launch.directory)
        lost = lost_versions(file, before, view.assignments)
        context = RequestContext(_WHO, time.time(), secrets.token_hex(4))
        decision = apply_fleet(view, file, context, agreed=agreed, lost=lost, engine=engine)
        if check is not None:
            await check(decision.answer.record, launch.where)
        if not decision.operations or (await store.transact(decision.compares, decision.operations)).succeeded:
            return decision.answer.record, before
    raise Unavailable(f"the fleet record changed {_ATTEMPTS} times while the file was applied; try again")


def _check_engine(view: View, engine: str) -> None:
    """The supervisor of the other engine would follow the record, and so would the plans of the controllers."""
    before = view.fleet
    if before is None or before.engine == engine:
        return
    workers = [name for name, record in view.workers.items() if record.incarnation != BY_ADDRESS]
    if names := [*view.gateways, *workers]:
        named = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        command = f"isochrone up --engine {before.engine}"
        how = f"with Ctrl-C in its '{command}'; if that is gone, start it again, and then stop it"
        if before.engine == KUBERNETES:
            how = "by deleting the Deployment 'engine', if it has one, and then its pods"
        raise FlagError(
            "--engine",
            f"{before.engine}, which runs {named} of this fleet (to change the engine, stop the fleet first, {how})",
            engine,
        )


def _is_applied(record: FleetRecord, launch: Launch) -> bool:
    """Whether the file is the applied one. It is not applied again: that would undo rollouts made since."""
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
