"""The access rules of the store in a process: each good record counts at once, and nothing else changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from isochrone.control.agents.access_following import AccessFollowing
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import AccessRecord
from isochrone.errors import IsochroneError, Unauthenticated, Unavailable
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.secure.access.permissions import INFERENCE
from isochrone.secure.access.tokens import digest_of
from isochrone.store.base import Changes, Delete, Entry, Put, Snapshot, Store, StoreUnavailable
from isochrone.store.opening import open_store
from watching import wait_for

KEY = Keys("test").access


def rules(*names: str) -> dict[str, Any]:
    """Each token of these is its name, and may infer."""
    tokens = {name: {"sha256": digest_of(name)} for name in names}
    return {"tokens": tokens, "assign": [{"to": ["token:*"], "roles": ["caller"]}]}


def record(*names: str) -> bytes:
    return encode(AccessRecord(1, rules(*names)))


def may(keeper: AccessKeeper, token: str) -> bool:
    try:
        keeper.grant(b"Bearer " + token.encode()).require(INFERENCE, "m")
    except IsochroneError:
        return False
    return True


def test_what_cannot_be_read_changes_nothing() -> None:
    keeper = AccessKeeper(None)
    following = AccessFollowing(keeper, KEY)
    following.take(None)
    following.take(Entry(KEY, b"nonsense", 1))
    following.take(Entry(KEY, encode(AccessRecord(1, {"tokens": 1})), 2))
    assert not following.is_read.is_set()
    with pytest.raises(Unavailable):
        keeper.grant(b"Bearer a").require(INFERENCE, "m")
    following.take(Entry(KEY, record("a"), 3))
    assert following.is_read.is_set()
    assert may(keeper, "a")
    for bad in (
        None,
        Entry(KEY, b"nonsense", 4),
        Entry(KEY, b"", 5),
        Entry(KEY, encode(AccessRecord(2, {"roles": {"r": [{"may": ["all"]}]}})), 6),
    ):
        following.take(bad)
        assert may(keeper, "a")
        assert not may(keeper, "b")
    following.take(Entry(KEY, record("b"), 7))
    with pytest.raises(Unauthenticated):
        keeper.grant(b"Bearer a").require(INFERENCE, "m")
    assert may(keeper, "b")


class Away(Store):
    """A store that can be away."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url
        self.is_away = True
        self.asked = asyncio.Event()

    def check(self) -> None:
        self.asked.set()
        if self.is_away:
            raise StoreUnavailable("the store is away")

    async def list(self, prefix: str) -> Snapshot:
        self.check()
        return await self.inner.list(prefix)

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Changes]:
        self.check()
        async for changes in self.inner.watch(prefix, after):
            self.check()
            yield changes

    async def get(self, key: str) -> Entry | None:
        raise AssertionError

    async def transact(self, *given: Any, **more: Any) -> Any:
        raise AssertionError

    async def grant(self, seconds: float) -> Any:
        raise AssertionError

    async def close(self) -> None:
        await self.inner.close()


async def until(holds: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_for, holds)


def test_a_store_that_comes_and_goes(tmp_path: Path) -> None:
    asyncio.run(_come_and_go(tmp_path))


async def _come_and_go(tmp_path: Path) -> None:
    writer = open_store(f"sqlite:{tmp_path}/store.db")
    store = Away(open_store(f"sqlite:{tmp_path}/store.db"))
    keeper = AccessKeeper(None)
    following = AccessFollowing(keeper, KEY)
    try:
        await writer.transact((), [Put(KEY, record("a"))])
        following.watch(store)
        await store.asked.wait()
        assert not following.is_read.is_set()
        store.is_away = False
        await until(following.is_read.is_set)
        assert may(keeper, "a")
        store.is_away = True
        store.asked.clear()
        await writer.transact((), [Put(KEY, record("b"))])
        await store.asked.wait()
        assert may(keeper, "a"), "the last rules hold while the store is away"
        store.is_away = False
        await until(lambda: may(keeper, "b"))
        assert not may(keeper, "a")
        await writer.transact((), [Delete(KEY)])
        await writer.transact((), [Put(KEY, record("c"))])
        await until(lambda: may(keeper, "c"))
    finally:
        await following.stop()
        await store.close()
        await writer.close()


def test_rules_of_an_older_file_are_not_followed() -> None:
    keeper = AccessKeeper(None)
    following = AccessFollowing(keeper, KEY)
    following.take(Entry(KEY, encode(AccessRecord(1, rules("a", "b"), written=10.0)), 1))
    following.take(Entry(KEY, encode(AccessRecord(2, rules("b"), written=20.0)), 2))
    # Somebody puts the first record back: a token that was revoked stays so.
    following.take(Entry(KEY, encode(AccessRecord(1, rules("a", "b"), written=10.0)), 3))
    assert not may(keeper, "a")
    assert may(keeper, "b")
    following.take(Entry(KEY, encode(AccessRecord(3, rules("a"), written=20.0)), 4))
    assert may(keeper, "a")
