"""A gateway's registration in the store: its name, under a lease, and the epoch that it serves.

A strict switch waits for every registered name, so two gateways with the same name would break it: a name is claimed by
compare-and-swap, and a name that another gateway holds is rejected. The lease of a gateway that died expires, so a
restarted gateway waits for that first. Must never overwrite another gateway's registration.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from isochrone.control.state.codec import Unreadable, decode, encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord
from isochrone.errors import AlreadyExists
from isochrone.store.base import Compare, Delete, Entry, Lease, Put, Store, StoreUnavailable
from isochrone.store.mirror import Mirror
from isochrone.store.seals import refusal

log = structlog.get_logger(__name__)

#: Seconds between two reports that differ only in the health of workers: a flapping worker must not flood the store.
_REPORT_SECONDS = 0.25
#: Seconds between two looks at the whole record: the store may change far more often, and a look is at every model.
_LOOK_SECONDS = 0.1
#: Seconds beyond a lease before a name counts as held by a living gateway.
_MARGIN = 1.0


class NameTaken(AlreadyExists):
    """Another gateway is registered under this name."""


class GatewayRegistration:
    """One gateway's. ``own``: its name; ``current``: its present record, ``epoch``: the epoch in it; ``lost``: called
    when another gateway has the name."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        mirror: Mirror,
        own: GatewayRecord,
        current: Callable[[], Awaitable[GatewayRecord]],
        epoch: Callable[[], int],
        lease_seconds: float,
        lost: Callable[[NameTaken], None],
    ) -> None:
        self._store = store
        self._keys = keys
        self._mirror = mirror
        self._current = current
        self._epoch = epoch
        self._lease_seconds = lease_seconds
        self._lost = lost
        #: Under which the gateway is registered; None: it was not yet.
        self.lease: Lease | None = None
        #: Called when it is registered, and each time it had to register again.
        self.on_registered: Callable[[], None] = lambda: None
        self._name, self._incarnation = own.name, own.incarnation
        self._key, self._known_key = keys.gateway(own.name), keys.known_gateway(own.name)
        #: The record that was written last, and when; None: none yet.
        self._written: GatewayRecord | None = None
        self._written_at = 0.0
        self._looked_at = 0.0

    async def start(self) -> None:
        """Return when the gateway is registered. Wait for the store, and for the lease of a dead gateway of this name.
        Raise ``NameTaken``."""
        holder, since = "", time.monotonic()
        while True:
            try:
                await self._register()
                return
            except NameTaken as error:
                if error.message != holder:
                    holder, since = error.message, time.monotonic()
                    log.warning("the gateway's name is registered; waiting for its lease to expire", error=holder)
                if time.monotonic() - since > self._lease_seconds + _MARGIN:
                    raise
                await asyncio.sleep(0.1)
            except StoreUnavailable as error:
                log.warning("the gateway cannot register", error=str(error))
                await asyncio.sleep(0.5)

    async def keep(self) -> None:
        """Register again if the lease is lost, and report what is served; until cancelled, or the name is lost."""
        while True:
            before = self._mirror.revision
            try:
                if self._mirror.connected:
                    if not self._stands():
                        await self._register()
                    await self._report()
            except NameTaken as error:
                log.error("another gateway has registered under this name; this one stops", error=error.message)
                self._lost(error)
                return
            except StoreUnavailable:
                pass  # the mirror logs it
            except Exception as error:
                # A gateway without a registration would count as lost.
                log.error("keeping the gateway registered failed unexpectedly", exc_info=error)
                await asyncio.sleep(0.5)
            await self._mirror.changed(before, 0.1)

    async def deregister(self) -> None:
        """Remove the registration, so that no switch waits for this gateway. Only when it no longer admits requests."""
        known = await self._store.get(self._known_key)
        if known is not None and known.value == self._incarnation.encode():
            await self._store.transact(
                (Compare(known.key, known.revision),),
                (
                    Delete(self._key),
                    Delete(known.key),
                    Delete(self._keys.seen_epoch(self._name)),
                    Put(self._keys.gateway_set, f"{self._name} left".encode()),
                ),
            )
        if self.lease is not None:
            await self.lease.revoke()

    def _stands(self) -> bool:
        """Whether the registration still stands as it was written."""
        entry, known = (self._mirror.entries.get(key) for key in (self._key, self._known_key))
        if entry is None or known is None or self.lease is None or self.lease.lost or refusal(entry.value):
            return False
        return entry.lease == self.lease.id and known.value == self._incarnation.encode()

    async def _register(self) -> None:
        """Register in one transaction: every strict switch committed after it waits for this gateway too."""
        if self.lease is None or self.lease.lost:
            self.lease = await self._store.grant(self._lease_seconds)
        entry = await self._store.get(self._key)
        if entry is not None and not self._may_replace(entry, self.lease.id):
            raise NameTaken(
                f"the gateway name '{self._name}' is in use by {_holder(entry)}; give each gateway its own --name"
            )
        record = await self._current()
        outcome = await self._store.transact(
            # If two gateways start at once, one of them writes and the other reads again.
            (Compare(self._key, entry.revision if entry is not None else 0),),
            (
                Put(self._key, encode(record), self.lease.id),
                Put(self._known_key, self._incarnation.encode()),
                Put(self._keys.gateway_set, f"{self._name} {self._incarnation}".encode()),
                *self._seen(record),
            ),
            # A durable commit after it makes it durable.
            durable=False,
        )
        # Nothing is admitted before all earlier writes have been seen.
        await self._mirror.catch_up(outcome.revision)
        if not outcome.succeeded:
            return await self._register()
        self._written, self._written_at = record, time.monotonic()
        self.on_registered()

    def _may_replace(self, entry: Entry, lease: int) -> bool:
        """Whether the entry is this gateway's own, or has no lease, or no gateway of this fleet wrote it."""
        if entry.lease in (0, lease) or refusal(entry.value):
            return True
        try:
            return decode(entry.value, GatewayRecord).incarnation == self._incarnation
        except Unreadable:
            return False  # its owner rewrites it, or its lease expires

    async def _report(self) -> None:
        """Write the present record and, if the epoch changed, the key that outlives the registration."""
        written, now = self._written, time.monotonic()
        if written is not None and written.epoch == self._epoch() and now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        record = await self._current()
        if record == written or self.lease is None:
            return
        epoch_changed = written is None or written.epoch != record.epoch
        if not epoch_changed and time.monotonic() - self._written_at < _REPORT_SECONDS:
            return
        entry = self._mirror.entries.get(self._key)
        if entry is None:
            return
        operations = [Put(self._key, encode(record), self.lease.id)]
        if epoch_changed:
            operations += self._seen(record)
        outcome = await self._store.transact((Compare(self._key, entry.revision),), operations, durable=False)
        if outcome.succeeded:
            self._written, self._written_at = record, time.monotonic()

    def _seen(self, record: GatewayRecord) -> list[Put]:
        """The epoch that a record reports, where it outlives the registration: nothing if it serves none yet."""
        value = f"{self._incarnation} {record.epoch}".encode()
        return [Put(self._keys.seen_epoch(self._name), value)] if record.epoch else []


def _holder(entry: Entry) -> str:
    try:
        record = decode(entry.value, GatewayRecord)
    except Unreadable:
        return "another gateway, whose record cannot be read"
    return f"the gateway at {record.host}:{record.port} (process {record.pid})"
