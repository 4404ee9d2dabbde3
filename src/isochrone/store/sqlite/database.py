"""The store's operations on one SQLite file, as blocking calls.

Every operation is one SQLite transaction. Overdue leases end first, so that their keys never count. Runs on the store's
own thread (``thread``), never on the event loop.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from isochrone.clock import SECOND
from isochrone.store.base import (
    Changes,
    Compacted,
    Compare,
    Delete,
    Entry,
    LeaseEnded,
    Outcome,
    Put,
    Snapshot,
)
from isochrone.store.machine_clock import MachineClock
from isochrone.store.prefixes import first_after
from isochrone.store.sqlite.errors import breaks_connection, unavailable
from isochrone.store.sqlite.file import SqliteFile
from isochrone.store.sqlite.file_notices import say_changed

#: Deletions that are kept for watches. Beyond it the older half is forgotten, and an older watch starts over.
KEPT_DELETIONS = 4096

#: Later than any reading of the clock, and still an SQLite integer.
_NEVER = (1 << 63) - 1

_OVERDUE = "boot != ? OR ends <= ?"


class SqliteDatabase:
    def __init__(self, url: str, path: Path, clock: MachineClock, kept_deletions: int = KEPT_DELETIONS) -> None:
        self.url, self.path = url, path
        self._clock = clock
        self._kept_deletions = kept_deletions
        self._file = SqliteFile(url, path)
        self._revision_moved = False

    def close(self) -> None:
        self._file.close()

    def get(self, key: str) -> Entry | None:
        with self._reading() as connection:
            row = connection.execute("SELECT key, value, revision, lease FROM entries WHERE key = ?", (key,)).fetchone()
        return Entry(*row) if row else None

    def list(self, prefix: str) -> Snapshot:
        with self._reading() as connection:
            revision, _ = _state(connection)
            entries = _entries_under(connection, prefix, 0)
        return Snapshot({entry.key: entry for entry in entries}, revision)

    def changes(self, prefix: str, after: int) -> Changes:
        """All changes since a revision; empty, with the store's revision, if there are none."""
        with self._reading() as connection:
            revision, compacted = _state(connection)
            if after < compacted or after > revision:
                raise Compacted(f"store {self.url}: changes after {after} are not kept, only {compacted} to {revision}")
            if after == revision:
                return Changes(revision)
            condition, values = _under(prefix)
            deleted = connection.execute(
                f"SELECT key FROM deletions WHERE revision > ? AND {condition} ORDER BY key", (after, *values)
            ).fetchall()
            written = _entries_under(connection, prefix, after)
        return Changes(revision, tuple(written), tuple(key for (key,) in deleted))

    def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], durable: bool = True
    ) -> Outcome:
        with self._writing(durable) as connection:
            revision, _ = _state(connection)
            for compare in compares:
                found = connection.execute("SELECT revision FROM entries WHERE key = ?", (compare.key,)).fetchone()
                if (found[0] if found else 0) != compare.revision:
                    return Outcome(False, revision)
            for lease in {operation.lease for operation in operations if isinstance(operation, Put)} - {0}:
                if not connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone():
                    raise LeaseEnded(self.url, lease)
            return Outcome(True, self._apply(connection, revision, operations))

    def grant(self, seconds: float) -> int:
        identity = secrets.randbelow(_NEVER - 1) + 1
        # Not durable, like renewals: no lease outlives a restart of the machine.
        with self._writing(durable=False) as connection:
            ends = self._clock.now_ns() + int(seconds * SECOND)
            connection.execute("INSERT INTO leases VALUES (?, ?, ?, ?)", (identity, seconds, self._clock.boot, ends))
        return identity

    def renew(self, lease: int) -> bool:
        """False: it has ended."""
        # Not durable: a renewal means nothing after a restart of the machine.
        with self._writing(durable=False) as connection:
            now = self._clock.now_ns()
            done = connection.execute(
                f"UPDATE leases SET ends = ? + CAST(seconds * {SECOND} AS INTEGER) WHERE id = ?", (now, lease)
            )
            return done.rowcount == 1

    def revoke(self, lease: int) -> None:
        with self._writing(durable=False) as connection:
            self._end(connection, [lease])

    def position(self) -> tuple[int, int]:
        """The revision, and when the first lease ends on the clock: what watches depend on."""
        with self._connection() as connection:
            connection.execute("BEGIN")
            try:
                return _state(connection)[0], self._first_end(connection)
            finally:
                connection.execute("COMMIT")

    def data_version(self) -> int:
        """Differs from the last value if another connection has written since; costs some 5 µs and no disk access."""
        with self._connection() as connection:
            version: int = connection.execute("PRAGMA data_version").fetchone()[0]
            return version

    def expire(self) -> None:
        """End overdue leases."""
        with self._writing(durable=False):
            pass

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """The connection; errors of SQLite are raised as ``StoreUnavailable``."""
        try:
            yield self._file.open()
        except sqlite3.Error as error:
            if breaks_connection(error):
                self._file.close()
            raise unavailable(self.url, error) from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._connection() as connection:
            connection.execute("BEGIN")
            try:
                if self._first_end(connection) <= self._clock.now_ns():
                    connection.execute("COMMIT")
                    with self._writing(durable=False):
                        pass
                    connection.execute("BEGIN")
                yield connection
            finally:
                # The connection may be closed, if ending a lease failed; that error is the one to report.
                if self._file.connection is connection and connection.in_transaction:
                    connection.execute("COMMIT")

    @contextlib.contextmanager
    def _writing(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """A write transaction. Overdue leases end first, in a transaction of their own, which stands if this fails."""
        with self._connection() as connection:
            if not durable:
                connection.execute("PRAGMA synchronous = NORMAL")
            try:
                connection.execute("BEGIN IMMEDIATE")
                overdue = connection.execute(
                    f"SELECT id FROM leases WHERE {_OVERDUE}", (self._clock.boot, self._clock.now_ns())
                ).fetchall()
                if overdue:
                    self._end(connection, [lease for (lease,) in overdue])
                    connection.execute("COMMIT")
                    connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if self._revision_moved:
                    self._revision_moved = False
                    say_changed(self.path)
                if not durable:
                    connection.execute("PRAGMA synchronous = FULL")

    def _first_end(self, connection: sqlite3.Connection) -> int:
        first = connection.execute(
            "SELECT min(CASE WHEN boot = ? THEN ends ELSE 0 END) FROM leases", (self._clock.boot,)
        ).fetchone()[0]
        return _NEVER if first is None else first

    def _end(self, connection: sqlite3.Connection, leases: Sequence[int]) -> None:
        operations: list[Put | Delete] = []
        for lease in leases:
            connection.execute("DELETE FROM leases WHERE id = ?", (lease,))
            keys = connection.execute("SELECT key FROM entries WHERE lease = ? AND lease != 0", (lease,)).fetchall()
            operations += [Delete(key) for (key,) in keys]
        self._apply(connection, _state(connection)[0], operations)

    def _apply(self, connection: sqlite3.Connection, revision: int, operations: Sequence[Put | Delete]) -> int:
        """The revision afterwards. Deleting an absent key changes nothing."""
        following = revision + 1
        changed = deleted = False
        for operation in operations:
            key = operation.key
            if isinstance(operation, Put):
                connection.execute(
                    "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)",
                    (key, operation.value, following, operation.lease),
                )
                connection.execute("DELETE FROM deletions WHERE key = ?", (key,))
                changed = True
            elif connection.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount:
                connection.execute("INSERT OR REPLACE INTO deletions VALUES (?, ?)", (key, following))
                changed = deleted = True
        if not changed:
            return revision
        connection.execute("UPDATE state SET revision = ?", (following,))
        self._revision_moved = True
        if deleted:
            self._compact(connection)
        return following

    def _compact(self, connection: sqlite3.Connection) -> None:
        if connection.execute("SELECT count(*) FROM deletions").fetchone()[0] <= self._kept_deletions:
            return
        (oldest_kept,) = connection.execute(
            "SELECT revision FROM deletions ORDER BY revision DESC LIMIT 1 OFFSET ?", (self._kept_deletions // 2,)
        ).fetchone()
        connection.execute("DELETE FROM deletions WHERE revision <= ?", (oldest_kept,))
        connection.execute("UPDATE state SET compacted = ?", (oldest_kept,))


def _state(connection: sqlite3.Connection) -> tuple[int, int]:
    revision, compacted = connection.execute("SELECT revision, compacted FROM state").fetchone()
    return revision, compacted


def _under(prefix: str) -> tuple[str, tuple[str, ...]]:
    end = first_after(prefix)
    return ("key >= ?", (prefix,)) if end is None else ("key >= ? AND key < ?", (prefix, end))


def _entries_under(connection: sqlite3.Connection, prefix: str, after: int) -> list[Entry]:
    condition, values = _under(prefix)
    # The plus keeps SQLite from using the index by revision when a whole prefix is read.
    revision = "revision" if after else "+revision"
    rows = connection.execute(
        f"SELECT key, value, revision, lease FROM entries WHERE {revision} > ? AND {condition} ORDER BY key",
        (after, *values),
    )
    return [Entry(*row) for row in rows.fetchall()]
