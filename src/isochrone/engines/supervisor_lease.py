"""One supervisor per fleet, on whatever machine: the one whose record is in the store, under its lease, supervises.

The lock of the state directory keeps a second one from starting on the same machine. A store in a file needs no more;
a store that several machines share has this record too. While the store is away, the supervisor goes on: a second one
cannot start then. One that was paused for longer than its lease may find a successor, and gives way to it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from isochrone.control.state.codec import Unreadable, decode, encode
from isochrone.control.state.keys import Keys
from isochrone.errors import AlreadyExists
from isochrone.store.base import Compare, Delete, Entry, Lease, Put, Store, StoreUnavailable
from isochrone.store.seals import refusal

log = structlog.get_logger(__name__)

#: Of the lease. A supervisor that was killed on another machine is replaced after that.
LEASE_SECONDS = 10.0
#: Seconds after which a record that is still there is that of a supervisor which lives.
PATIENCE = LEASE_SECONDS + 1.0
#: Seconds between two looks at the record.
_LOOK_SECONDS = 1.0


class SupervisorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The supervisor of a fleet."""

    host: str
    pid: int
    #: The running kernel and its table of processes: only there a pid says whether the process lives.
    kernel: str = ""

    @property
    def words(self) -> str:
        return f"process {self.pid} on {self.host}"

    def has_ended(self, here: SupervisorRecord) -> bool:
        """Whether that is certain. ``here``: a process of this machine."""
        return bool(self.kernel) and self.kernel == here.kernel and not Path(f"/proc/{self.pid}").exists()


def this_supervisor() -> SupervisorRecord:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        kernel = f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        kernel = ""
    return SupervisorRecord(socket.gethostname(), os.getpid(), kernel)


class SupervisorLease:
    """``taken`` is set when another supervisor has taken over."""

    def __init__(
        self, store: Store, keys: Keys, own: SupervisorRecord | None = None, seconds: float = LEASE_SECONDS
    ) -> None:
        self._store = store
        self._key = keys.supervisor
        self._own = own or this_supervisor()
        self._seconds = seconds
        self._lease: Lease | None = None
        self._revision = 0
        self._keeping: asyncio.Task[None] | None = None
        self.taken = asyncio.Event()
        #: Words for the supervisor that has taken over.
        self.successor = ""

    async def take(self, waits: Callable[[str], None], patience: float | None = PATIENCE) -> None:
        """Return when this process is the supervisor. Raise ``StoreUnavailable``.

        Another one may have been killed: then its lease ends. If it still has the record after ``patience`` seconds,
        raise ``AlreadyExists``; None: wait as its standby. ``waits`` is called with words for the one that has it.
        """
        loop = asyncio.get_running_loop()
        began, named = loop.time(), ""
        while (other := await self._try()) is not None:
            if patience is not None and loop.time() - began >= patience:
                raise AlreadyExists(
                    f"this fleet is up already, by {other}; change it with 'isochrone apply', or stop that process"
                )
            if other != named:
                waits(other)
                named = other
            await asyncio.sleep(_LOOK_SECONDS)
        self._keeping = asyncio.create_task(self._keep(), name="supervisor-lease")

    async def release(self) -> None:
        """Another one may supervise at once."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._lease is not None:
            await self._lease.revoke()

    async def _try(self) -> str | None:
        """None: the record is this supervisor's now. Else words for the one that has it."""
        entry = await self._store.get(self._key)
        if self._lease is None or self._lease.lost:
            self._lease = await self._store.grant(self._seconds)
        if entry is not None and refusal(entry.value):
            # No supervisor of this fleet wrote it.
            await self._store.transact((Compare(self._key, entry.revision),), (Delete(self._key),))
            entry = None
        if entry is not None and entry.lease == self._lease.id:
            self._revision = entry.revision  # an earlier attempt wrote it, and its answer was lost
            return None
        record = _read(entry)
        if entry is not None and record is not None and record.has_ended(self._own):
            await self._store.transact((Compare(self._key, entry.revision),), (Delete(self._key),))
            entry = None
        if entry is not None:
            return record.words if record is not None else "a supervisor of another release"
        put = Put(self._key, encode(self._own), self._lease.id)
        outcome = await self._store.transact((Compare(self._key, 0),), (put,), durable=False)
        if not outcome.succeeded:
            return "a supervisor that has just started"
        self._revision = outcome.revision
        return None

    async def _keep(self) -> None:
        """Renewed in the background; after an outage of the store it is taken again, unless another one was quicker."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                entry = await self._store.get(self._key)
                if entry is not None and entry.revision == self._revision:
                    continue
                other = await self._try()
            except StoreUnavailable:
                continue
            if other is not None:
                log.warning("another supervisor has taken over", supervisor=other)
                self.successor = other
                self.taken.set()
                return


def _read(entry: Entry | None) -> SupervisorRecord | None:
    try:
        return None if entry is None else decode(entry.value, SupervisorRecord)
    except Unreadable:
        return None
