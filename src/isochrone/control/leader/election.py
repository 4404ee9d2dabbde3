"""Leader election: the controller that holds the leader's key, under its lease, leads. The others wait.

Every write of a leader is conditional on still leading, so a controller that was paused and does not know yet that it
lost the lead can do no harm.
"""

from __future__ import annotations

import asyncio

import structlog

from isochrone.control.state.keys import Keys
from isochrone.store.base import Compare, Lease, Put, Store, StoreUnavailable
from isochrone.store.mirror import Mirror
from isochrone.store.seals import refusal

log = structlog.get_logger(__name__)


class Candidate:
    """One controller in the election."""

    def __init__(self, store: Store, keys: Keys, mirror: Mirror, name: str, seconds: float) -> None:
        self._store = store
        self._keys = keys
        self._mirror = mirror
        self._name = name
        self._seconds = seconds
        self._lease: Lease | None = None
        self._revision = 0
        self._error = ""

    @property
    def error(self) -> str:
        """Why nothing can be written, leading or not; "": no write has failed."""
        return self._error or (self._lease.error if self._lease is not None else "")

    @property
    def leads(self) -> bool:
        """Whether this controller leads, as far as it knows."""
        if self._lease is None or self._lease.lost or not self._revision:
            return False
        entry = self._mirror.entries.get(self._keys.leader)
        return entry is not None and entry.revision == self._revision

    @property
    def term(self) -> int:
        """The store's revision at the election, which grows from leader to leader. 0: it does not lead."""
        return self._revision

    def condition(self) -> Compare:
        """The condition that this controller still leads."""
        return Compare(self._keys.leader, self._revision)

    async def campaign(self) -> None:
        """Return when this controller leads. Retry while the store is unavailable."""
        while True:
            try:
                if self._lease is None or self._lease.lost:
                    self._lease = await self._store.grant(self._seconds)
                self._error = ""
                seen = self._mirror.revision
                entry = self._mirror.entries.get(self._keys.leader)
                if entry is not None and refusal(entry.value):
                    # Nobody leads by it, and it has no lease that must end first.
                    if await self._write_name(entry.revision):
                        return
                    continue
                if entry is not None and entry.lease == self._lease.id:
                    # An earlier attempt wrote it, and its answer was lost.
                    self._revision = entry.revision
                    log.info("leads", controller=self._name)
                    return
                if entry is None and await self._write_name(0):
                    return
                await self._mirror.changed(seen, 1.0)
            except StoreUnavailable as error:
                if not self._error:
                    # The mirror does not log it if the store can still be read, as on a full disk.
                    log.warning("no leader can be elected: the store does not accept writes", error=error.message)
                self._error = error.message
                await asyncio.sleep(0.5)

    async def _write_name(self, revision: int) -> bool:
        """Whether this controller leads now: it does if the key was last written by ``revision``."""
        if self._lease is None:
            return False
        put = Put(self._keys.leader, self._name.encode(), self._lease.id)
        outcome = await self._store.transact((Compare(self._keys.leader, revision),), (put,), durable=False)
        await self._mirror.catch_up(outcome.revision)
        if outcome.succeeded:
            self._revision = outcome.revision
            log.info("leads", controller=self._name)
        return outcome.succeeded

    async def resign(self) -> None:
        """End the lease, so that another controller may lead at once."""
        self._revision = 0
        if self._lease is not None:
            lease, self._lease = self._lease, None
            await lease.revoke()
