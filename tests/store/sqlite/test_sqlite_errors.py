"""Files that cannot be a store: each error has a remedy, and the store works when the file is repaired."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from isochrone.store.base import Compacted, Delete, Put, Store, StoreUnavailable
from isochrone.store.machine_clock import MachineClock, machine_clock
from isochrone.store.sqlite.database import SqliteDatabase
from isochrone.store.sqlite.file import APPLICATION_ID, SCHEMA_VERSION
from isochrone.store.sqlite.store import SqliteStore
from store_conformance import mirrored, put, run, until


def database_at(path: Path, clock: MachineClock | None = None) -> SqliteDatabase:
    return SqliteDatabase(f"sqlite:{path.name}", path, clock or machine_clock())


def connection_of(database: SqliteDatabase) -> sqlite3.Connection:
    connection = database._file.connection
    assert connection is not None
    return connection


def test_a_full_disk_is_told_and_passes(tmp_path: Path) -> None:
    database = database_at(tmp_path / "fleet.db")
    database.transact([], [Put("/a", b"1")])
    (pages,) = connection_of(database).execute("PRAGMA page_count").fetchone()
    connection_of(database).execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreUnavailable, match=r"disk is full.*free some space"):
        database.transact([], [Put("/b", bytes(50_000)), Put("/c", b"1")])
    assert set(database.list("/").entries) == {"/a"}
    connection_of(database).execute("PRAGMA max_page_count = 100000")
    assert database.transact([], [Put("/b", bytes(50_000))]).succeeded
    database.close()


def test_a_read_only_file_is_told(tmp_path: Path) -> None:
    database = database_at(tmp_path / "fleet.db")
    database.transact([], [Put("/a", b"1")])
    connection_of(database).execute("PRAGMA query_only = ON")
    with pytest.raises(StoreUnavailable, match=r"read-only.*writable"):
        database.transact([], [Put("/a", b"2")])
    # The connection was given up: the next one may write.
    assert database.transact([], [Put("/a", b"3")]).succeeded
    database.close()


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"models: here\n" * 1000)
    with contextlib.closing(sqlite3.connect(tmp_path / "foreign.db")) as connection:
        connection.execute("CREATE TABLE somebody_elses (a)")
    with contextlib.closing(sqlite3.connect(tmp_path / "newer.db")) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    (tmp_path / "directory.db").mkdir()
    for name, words in {
        "text.db": "not an SQLite database",
        "foreign.db": "another program's",
        "newer.db": f"schema {SCHEMA_VERSION + 1}, this release knows {SCHEMA_VERSION}",
        "directory.db": "cannot be opened",
        "text.db/fleet.db": "directory cannot be created",
    }.items():
        with pytest.raises(StoreUnavailable, match=words):
            database_at(tmp_path / name).list("/")
    assert (tmp_path / "text.db").read_bytes().startswith(b"models: here")


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    database = database_at(path)
    database.transact([], [Put(f"/{number}", bytes(2000)) for number in range(100)])
    database.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(StoreUnavailable, match=r"damaged.*backup"):
        database_at(path).list("/")


def test_a_lock_that_is_held_for_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isochrone.store.sqlite.file.BUSY_SECONDS", 0.05)
    path = tmp_path / "fleet.db"
    database = database_at(path)
    database.transact([], [Put("/a", b"1")])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"lock for too long.*paused or hangs"):
            database.transact([], [Put("/a", b"2")])
        # Who reads does not wait for who writes.
        assert set(database.list("/").entries) == {"/a"}
        other.execute("ROLLBACK")
    assert database.transact([], [Put("/a", b"2")]).succeeded
    database.close()


def test_a_lease_of_another_boot_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    before = database_at(path, MachineClock("one boot", lambda: 5))
    lease = before.grant(60)
    before.transact([], [Put("/worker", b"1", lease), Put("/stays", b"1")])
    before.close()
    after = database_at(path, MachineClock("the next boot", lambda: 5))
    assert set(after.list("/").entries) == {"/stays"}
    assert not after.renew(lease)
    after.close()


def test_deletions_are_forgotten_in_time(tmp_path: Path) -> None:
    database = SqliteDatabase("sqlite:x", tmp_path / "fleet.db", machine_clock(), kept_deletions=4)
    first = database.transact([], [Put("/a", b"1")]).revision
    for number in range(20):
        lease = database.grant(60)
        database.transact([], [Put(f"/{number}", b"1", lease)])
        database.revoke(lease)
    with pytest.raises(Compacted):
        database.changes("/", first)
    snapshot = database.list("/")
    assert database.changes("/", snapshot.revision).revision == snapshot.revision
    with pytest.raises(Compacted):
        # A file that was put back from a backup is older than what this caller has seen.
        database.changes("/", snapshot.revision + 1)
    database.close()


def test_a_key_that_came_back_is_written_not_deleted(tmp_path: Path) -> None:
    database = database_at(tmp_path / "fleet.db")
    database.transact([], [Put("/a", b"1"), Put("/b", b"1")])
    database.transact([], [Delete("/a"), Delete("/b")])
    database.transact([], [Put("/a", b"2")])
    changes = database.changes("/", 0)
    assert [(entry.key, entry.value, entry.revision) for entry in changes.written] == [("/a", b"2", 3)]
    assert (changes.deleted, changes.revision) == (("/b",), 3)
    database.close()


def test_a_file_that_vanishes_is_told_and_may_come_back(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"

    async def scenario() -> None:
        store: Store = SqliteStore("sqlite:fleet.db", path)
        await put(store, "/a", b"1")
        await store.close()
        shutil.copy(path, tmp_path / "backup.db")
        store = SqliteStore("sqlite:fleet.db", path)
        async with mirrored(store, "/") as mirror:
            await put(store, "/b", b"1")
            await until(lambda: "/b" in mirror.entries, "the mirror follows")
            for name in ("fleet.db", "fleet.db-wal", "fleet.db-shm"):
                os.unlink(tmp_path / name)
            await until(lambda: not mirror.connected, "the mirror knows")
            assert "removed while it was open" in mirror.error
            assert set(mirror.entries) == {"/a", "/b"}
            with pytest.raises(StoreUnavailable, match="put it back"):
                await store.get("/a")
            assert not path.exists()
            shutil.copy(tmp_path / "backup.db", path)
            await until(lambda: mirror.connected, "the mirror follows again")
            assert set(mirror.entries) == {"/a"}
            assert (await store.transact([], [Put("/c", b"1")])).succeeded
            await until(lambda: "/c" in mirror.entries, "the mirror is told again")
        await store.close()

    run(scenario())


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore("sqlite:fleet.db", tmp_path / "fleet.db")
        watch = store.watch("/", 0)
        waiting = asyncio.ensure_future(anext(watch))
        await put(store, "/a", b"1")
        assert (await waiting).written[0].key == "/a"
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await waiting
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.get("/a")

    run(scenario())
