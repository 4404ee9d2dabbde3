"""Brings the fleet's access rules from the store into the keeper of one process.

A record that is gone or cannot be read changes nothing: the last good one stays in force, as while the store is away.
Nor does one whose file is older than that of the rules in force: a token that was revoked must not come back with a
record that somebody put back.
"""

from __future__ import annotations

import asyncio

import structlog

from isochrone.control.state.codec import Unreadable, decode
from isochrone.control.state.records import AccessRecord
from isochrone.errors import ConfigError
from isochrone.secure.access.document import parse_access
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.settings.documents import Document
from isochrone.store.base import Entry, Store, StoreUnavailable
from isochrone.store.mirror import Mirror

log = structlog.get_logger(__name__)

#: Seconds between two attempts to read the store for the first time.
_PAUSE = 0.5


class AccessFollowing:
    """Of one process. ``key``: of the record."""

    def __init__(self, keeper: AccessKeeper, key: str) -> None:
        self._keeper = keeper
        self._key = key
        self._revision = 0
        #: When the file of the rules in force was written.
        self._written = 0.0
        #: Set once rules are in force.
        self.is_read = asyncio.Event()
        self._mirror: Mirror | None = None
        self._starting: asyncio.Task[None] | None = None

    def take(self, entry: Entry | None) -> None:
        """The record as it stands now."""
        revision = entry.revision if entry is not None else 0
        if revision == self._revision:
            return
        self._revision = revision
        if entry is None:
            log.error("the fleet's access rules are gone from the store; the last ones stay in force")
            return
        try:
            record = decode(entry.value, AccessRecord)
            if record.written < self._written:
                log.error(
                    "older access rules were put into the store; those in force stay", generation=record.generation
                )
                return
            self._keeper.adopt(parse_access(Document("the fleet's access rules", record.document, None)))
        except (Unreadable, ConfigError) as error:
            log.error("the fleet's access rules cannot be read; the last good ones stay in force", reason=str(error))
            return
        self._written = record.written
        self.is_read.set()
        log.info("access rules read", generation=record.generation)

    def take_from(self, mirror: Mirror) -> None:
        """Follow the record in a mirror that is running."""
        mirror.on_change.append(lambda: self.take(mirror.entries.get(self._key)))
        self.take(mirror.entries.get(self._key))

    def watch(self, store: Store) -> None:
        """Follow it with a watch of its own; a store that does not answer is waited for."""
        self._mirror = Mirror(store, self._key)
        self._starting = asyncio.create_task(self._start(self._mirror), name="access-following")

    async def stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._mirror is not None:
            await self._mirror.stop()

    async def _start(self, mirror: Mirror) -> None:
        while True:
            try:
                await mirror.start()
                break
            except StoreUnavailable as error:
                log.debug("the access rules cannot be read yet", error=str(error))
                await asyncio.sleep(_PAUSE)
        self.take_from(mirror)
