"""The embedded store: one SQLite file that all processes of one machine share. It needs no server.

The file must be on a local file system: processes share its memory and its locks. Leases expire by the machine's clock;
every process that has the file open ends overdue ones. A process that is paused in the middle of a write (some
milliseconds) blocks the others until it continues or is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from isochrone.store.base import Changes, Compare, Delete, Entry, LeaseEnded, Outcome, Put, Snapshot, Store
from isochrone.store.leases import KeptLease
from isochrone.store.machine_clock import MachineClock, machine_clock
from isochrone.store.operations import check_operations, check_seconds
from isochrone.store.sqlite.database import KEPT_DELETIONS, SqliteDatabase
from isochrone.store.sqlite.thread import SqliteThread, Watcher


class SqliteStore(Store):
    """The first call opens the file."""

    def __init__(
        self, url: str, path: Path, clock: MachineClock | None = None, kept_deletions: int = KEPT_DELETIONS
    ) -> None:
        self.url = url
        self._clock = clock or machine_clock()
        self._thread = SqliteThread(SqliteDatabase(url, path, self._clock, kept_deletions), self._clock)
        self._leases: dict[int, KeptLease] = {}

    async def get(self, key: str) -> Entry | None:
        return await self._thread.call(lambda database: database.get(key))

    async def list(self, prefix: str) -> Snapshot:
        return await self._thread.call(lambda database: database.list(prefix))

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], *, durable: bool = True
    ) -> Outcome:
        check_operations(operations)
        try:
            return await self._thread.call(lambda database: database.transact(compares, operations, durable))
        except LeaseEnded as error:
            if error.lease in self._leases:
                self._leases.pop(error.lease).mark_lost()
            raise

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Changes]:
        watcher = Watcher(prefix, after)
        self._thread.add(watcher)
        try:
            while True:
                item = await watcher.arrived.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self._thread.remove(watcher)

    async def grant(self, seconds: float) -> KeptLease:
        check_seconds(seconds)
        asked_ns = self._clock.now_ns()
        identity = await self._thread.call(lambda database: database.grant(seconds))
        lease = KeptLease(identity, seconds, asked_ns, self._renew, self._revoke, self._clock.now_ns)
        self._leases[identity] = lease
        return lease

    async def close(self) -> None:
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            await lease.stop_keeping()
        # The last process to close the file merges its log, which may take a while.
        await asyncio.to_thread(self._thread.close)

    async def _renew(self, identity: int) -> bool:
        alive = await self._thread.call(lambda database: database.renew(identity))
        if not alive:
            self._leases.pop(identity, None)
        return alive

    async def _revoke(self, identity: int) -> None:
        self._leases.pop(identity, None)
        await self._thread.call(lambda database: database.revoke(identity))
