"""The store for fleets on many machines: etcd 3.4 or newer, through its JSON API.

etcd has the guarantees of ``base``: this module only translates, fails over between members, and renews leases. etcd
counts leases in whole seconds and has a minimum (1.5 election timeouts); ``Lease.seconds`` is the granted time. etcd
keeps old revisions unless it is configured otherwise: run it with ``--auto-compaction-retention``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Sequence

from isochrone.store.base import Changes, Compare, Delete, Entry, LeaseEnded, Outcome, Put, Snapshot, Store
from isochrone.store.etcd.address import read_address
from isochrone.store.etcd.api import EtcdApi
from isochrone.store.etcd.errors import LeaseNotFound
from isochrone.store.etcd.messages import (
    encoded_key,
    range_under,
    read_entry,
    read_outcome,
    read_snapshot,
    transaction,
)
from isochrone.store.etcd.watch import watch_changes
from isochrone.store.leases import KeptLease
from isochrone.store.machine_clock import boottime_ns
from isochrone.store.operations import check_operations, check_seconds


class EtcdStore(Store):
    """The first call connects. Raise ``ConfigError`` for an invalid URL."""

    def __init__(self, url: str) -> None:
        self._api = EtcdApi(read_address(url))
        self.url = self._api.shown
        self._leases: dict[int, KeptLease] = {}

    async def get(self, key: str) -> Entry | None:
        answer = await self._api.read("kv/range", {"key": encoded_key(key)})
        pairs = answer.get("kvs")
        return read_entry(pairs[0]) if pairs else None

    async def list(self, prefix: str) -> Snapshot:
        return read_snapshot(await self._api.read("kv/range", range_under(prefix)))

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], *, durable: bool = True
    ) -> Outcome:
        """Always durable: etcd has no other mode."""
        check_operations(operations)
        try:
            return read_outcome(await self._api.write("kv/txn", transaction(compares, operations)))
        except LeaseNotFound:
            raise self._ended(operations) from None

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Changes]:
        async with contextlib.aclosing(watch_changes(self._api, prefix, after)) as changes_there:
            async for changes in changes_there:
                yield changes

    async def grant(self, seconds: float) -> KeptLease:
        check_seconds(seconds)
        asked_ns = boottime_ns()
        # If the call is made twice, the first grant expires: nothing was written with it.
        granted = await self._api.read("lease/grant", {"TTL": str(math.ceil(seconds))})
        lease = KeptLease(int(granted["ID"]), float(granted["TTL"]), asked_ns, self._renew, self._revoke)
        self._leases[lease.id] = lease
        return lease

    async def close(self) -> None:
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            await lease.stop_keeping()
        await self._api.close()

    async def _renew(self, identity: int) -> bool:
        answer = await self._api.read("lease/keepalive", {"ID": str(identity)})
        alive = int(answer.get("TTL", 0)) > 0
        if not alive:
            self._leases.pop(identity, None)
        return alive

    async def _revoke(self, identity: int) -> None:
        self._leases.pop(identity, None)
        try:
            await self._api.read("lease/revoke", {"ID": str(identity)})
        except LeaseNotFound:
            pass

    def _ended(self, operations: Sequence[Put | Delete]) -> LeaseEnded:
        """etcd does not report which lease it was; most transactions have one."""
        named = [operation.lease for operation in operations if isinstance(operation, Put) and operation.lease]
        if len(set(named)) == 1 and named[0] in self._leases:
            self._leases.pop(named[0]).mark_lost()
        return LeaseEnded(self.url, named[0])
