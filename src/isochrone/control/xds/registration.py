"""Keeps the record of an xDS server in the store, under a lease: the epoch that all its clients have taken over.

The leader unloads the old version of a rollout only after that. The record of a server that dies expires, and nothing
waits for its clients any longer.
"""

from __future__ import annotations

import structlog

from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import XdsServerRecord
from isochrone.store.base import Lease, LeaseEnded, Put, Store, StoreUnavailable

log = structlog.get_logger(__name__)


class XdsRegistration:
    """One server's."""

    def __init__(self, store: Store, keys: Keys, lease_seconds: float) -> None:
        self._store = store
        self._keys = keys
        self._lease_seconds = lease_seconds
        self._lease: Lease | None = None
        self._written: XdsServerRecord | None = None

    async def write(self, record: XdsServerRecord) -> None:
        """Write the record unless it stands already. Never raise: the next call tries again."""
        lease = self._lease if self._lease is not None and not self._lease.lost else None
        if lease is not None and record == self._written:
            return
        try:
            if lease is None:
                # Nothing stands under a new lease, also if the write that follows fails.
                self._written = None
                lease = self._lease = await self._store.grant(self._lease_seconds)
            put = Put(self._keys.xds_server(record.name), encode(record), lease.id)
            await self._store.transact((), (put,), durable=False)
            self._written = record
        except LeaseEnded:
            self._lease = self._written = None
        except StoreUnavailable as error:
            log.debug("the xDS server's record could not be written", error=str(error))

    async def end(self) -> None:
        """Delete the record, if the store answers."""
        if self._lease is not None:
            await self._lease.revoke()
