"""The record of an xDS server comes back after any order of lost leases and failed writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import XdsServerRecord
from isochrone.control.xds.registration import XdsRegistration
from isochrone.store.base import Compare, Delete, Lease, LeaseEnded, Outcome, Put, Store, StoreUnavailable
from isochrone.store.opening import open_store

KEYS = Keys("registration")
RECORD = XdsServerRecord("c1", "127.0.0.1", 18000, 3, 2)


class _Lease(Lease):
    """A real lease that can be lost."""

    def __init__(self, lease: Lease) -> None:
        self.inner, self.id, self.seconds = lease, lease.id, lease.seconds
        self.is_lost = False

    @property
    def lost(self) -> bool:
        return self.is_lost

    async def revoke(self) -> None:
        await self.inner.revoke()


class _Store:
    """A real store of which writes can fail."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.failing: StoreUnavailable | None = None
        self.writes = 0
        self.leases: list[_Lease] = []

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], *, durable: bool = True
    ) -> Outcome:
        self.writes += 1
        if self.failing is not None:
            raise self.failing
        return await self.store.transact(compares, operations, durable=durable)

    async def grant(self, seconds: float) -> Lease:
        self.leases.append(_Lease(await self.store.grant(seconds)))
        return self.leases[-1]

    async def lose(self) -> None:
        self.leases[-1].is_lost = True
        await self.leases[-1].revoke()

    async def record(self) -> bytes | None:
        entry = await self.store.get(KEYS.xds_server("c1"))
        return entry.value if entry is not None else None


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[tuple[_Store, XdsRegistration]]:
    store = _Store(open_store(f"sqlite:{path / 'fleet.db'}"))
    try:
        yield store, XdsRegistration(store, KEYS, 60.0)  # type: ignore[arg-type]
    finally:
        await store.store.close()


@pytest.mark.parametrize("failure", [StoreUnavailable("store test: away"), LeaseEnded("test", 1)])
def test_a_failed_write_after_a_lost_lease_is_done_again(tmp_path: Path, failure: StoreUnavailable) -> None:
    async def scenario() -> None:
        async with _opened(tmp_path) as (store, registration):
            await registration.write(RECORD)
            assert await store.record() == encode(RECORD)
            await store.lose()
            assert await store.record() is None
            store.failing = failure
            await registration.write(RECORD)
            store.failing = None
            await registration.write(RECORD)
            assert await store.record() == encode(RECORD)
            await registration.end()
            assert await store.record() is None

    asyncio.run(scenario())


def test_a_record_that_stands_is_not_written_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _opened(tmp_path) as (store, registration):
            for _ in range(3):
                await registration.write(RECORD)
            assert (store.writes, len(store.leases)) == (1, 1)

    asyncio.run(scenario())
