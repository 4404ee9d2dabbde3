"""A store whose values are sealed when they are written and checked when they are read.

Everything else is the store's that it wraps. Revisions, leases and deletions are not sealed: whoever may write to the
store can delete a record, or put back an earlier one with its seal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace

from isochrone.store.base import Changes, Compare, Delete, Entry, Lease, Outcome, Put, Snapshot, Store
from isochrone.store.seals import Seal

#: Entries checked in one turn of the loop: some 10 µs each.
_AT_ONCE = 64
#: Bytes of a value that is sealed and checked off the loop: 250 KB, an epoch of a thousand models, take some 1 ms.
_LARGE = 32_768


class SealedStore(Store):
    """``seal`` may be replaced while the store is in use: what is written and read afterwards goes by the new one."""

    def __init__(self, store: Store, seal: Seal) -> None:
        self.inner = store
        self.seal = seal
        self.url = store.url

    @property
    def seals(self) -> bool:
        return self.seal.has_key

    async def get(self, key: str) -> Entry | None:
        entry = await self.inner.get(key)
        return None if entry is None else await self._opened(entry)

    async def list(self, prefix: str) -> Snapshot:
        snapshot = await self.inner.list(prefix)
        entries: dict[str, Entry] = {}
        for number, (key, entry) in enumerate(snapshot.entries.items(), 1):
            entries[key] = await self._opened(entry)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        return Snapshot(entries, snapshot.revision)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], *, durable: bool = True
    ) -> Outcome:
        sealed = [await self._sealed(each) if isinstance(each, Put) else each for each in operations]
        return await self.inner.transact(compares, sealed, durable=durable)

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Changes]:
        watch = self.inner.watch(prefix, after)
        try:
            async for changes in watch:
                if changes.written:
                    yield replace(changes, written=tuple([await self._opened(entry) for entry in changes.written]))
                else:
                    yield changes
        finally:
            if isinstance(watch, AsyncGenerator):
                await watch.aclose()

    async def grant(self, seconds: float) -> Lease:
        return await self.inner.grant(seconds)

    async def close(self) -> None:
        await self.inner.close()

    async def _sealed(self, put: Put) -> Put:
        seal = self.seal
        if not seal.has_key:
            return put
        is_large = len(put.value) > _LARGE
        value = await asyncio.to_thread(seal.seal, put.key, put.value) if is_large else seal.seal(put.key, put.value)
        return replace(put, value=value)

    async def _opened(self, entry: Entry) -> Entry:
        seal = self.seal
        if seal.has_key and len(entry.value) > _LARGE:
            value, sealed = await asyncio.to_thread(seal.open, entry.key, entry.value)
        else:
            value, sealed = seal.open(entry.key, entry.value)
        return entry if value is entry.value else Entry(entry.key, value, entry.revision, entry.lease, sealed)
