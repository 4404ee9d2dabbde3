"""A mirror while the store misbehaves; the conformance tests cover its normal behaviour."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from isochrone.store.base import Changes, Delete, Put, StoreUnavailable
from isochrone.store.machine_clock import machine_clock
from isochrone.store.mirror import Mirror
from isochrone.store.sqlite.store import SqliteStore
from store_conformance import mirrored, put, run, until


def test_it_does_not_start_without_a_store(tmp_path: Path) -> None:
    (tmp_path / "fleet.db").write_bytes(b"no database" * 100)

    async def scenario() -> None:
        store = SqliteStore("sqlite:fleet.db", tmp_path / "fleet.db")
        mirror = Mirror(store, "/")
        with pytest.raises(StoreUnavailable):
            await mirror.start()
        assert not mirror.connected
        await mirror.stop()
        await store.close()

    run(scenario())


def test_a_listener_that_fails_does_not_stop_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore("sqlite:fleet.db", tmp_path / "fleet.db")
        async with mirrored(store, "/") as mirror:
            called: list[int] = []
            mirror.on_change += [lambda: print(1 // 0), lambda: called.append(mirror.revision)]
            first = await put(store, "/a", b"1")
            await mirror.catch_up(first)
            second = await put(store, "/a", b"2")
            await mirror.catch_up(second)
            assert called == [first, second]
        await store.close()

    run(scenario())


def test_a_watch_that_fell_behind_lists_again_as_one_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "fleet.db"
        store = SqliteStore("sqlite:fleet.db", path, machine_clock(), kept_deletions=2)
        keys = [f"/{number}" for number in range(10)]
        await store.transact([], [Put(key, b"1") for key in keys])
        async with mirrored(store, "/") as mirror:
            seen: list[set[str]] = []
            mirror.on_change.append(lambda: seen.append(set(mirror.entries)))
            with structlog.testing.capture_logs() as lines:
                # More deletions than are kept: no watch can report them.
                await store.transact([], [*(Delete(key) for key in keys), Put("/new", b"1")])
                await until(lambda: bool(seen), "the mirror has listed again")
            assert seen == [{"/new"}]
            assert lines == [], "nothing is wrong with the store"
            last = await put(store, "/newer", b"1")
            await mirror.catch_up(last)
            assert seen == [{"/new"}, {"/new", "/newer"}]
        await store.close()

    run(scenario())


def test_waiting_ends_with_the_change_or_the_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore("sqlite:fleet.db", tmp_path / "fleet.db")
        async with mirrored(store, "/") as mirror:
            assert not await mirror.changed(mirror.revision, 0)
            revision = await put(store, "/a", b"1")
            assert await mirror.changed(revision - 1, 30)
            assert mirror.entries["/a"].value == b"1"
            # A late report of a slow watch is older than the mirror.
            mirror._apply(Changes(revision - 1, (), ("/a",)))
            assert mirror.entries["/a"].value == b"1"
            assert mirror.revision == revision
        await store.close()

    run(scenario())
