"""Opens the SQLite file: creates it once, however many processes start at a time, and checks that it is not replaced.

One connection in WAL mode with ``synchronous=FULL``: a completed write is on disk, and a process killed at any moment
leaves a file that opens without repair.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from isochrone.store.base import StoreUnavailable

#: The version of the tables. A release that changes them increments it and migrates older files here.
SCHEMA_VERSION = 1
#: "Isoc": distinguishes our files from other SQLite databases.
APPLICATION_ID = 0x49736F63
#: Seconds to wait for another process's lock.
BUSY_SECONDS = 5.0

_SCHEMA = (
    "CREATE TABLE state (revision INTEGER NOT NULL, compacted INTEGER NOT NULL)",
    "INSERT INTO state VALUES (0, 0)",
    "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL,"
    " lease INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX entries_by_revision ON entries (revision)",
    "CREATE INDEX entries_by_lease ON entries (lease) WHERE lease != 0",
    # Deleted keys, for watches; the newest few thousand.
    "CREATE TABLE deletions (key TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX deletions_by_revision ON deletions (revision)",
    # ends: nanoseconds on the machine's clock of that boot.
    "CREATE TABLE leases (id INTEGER PRIMARY KEY, seconds REAL NOT NULL, boot TEXT NOT NULL, ends INTEGER NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class SqliteFile:
    """The file of a store and its connection."""

    def __init__(self, url: str, path: Path) -> None:
        self._url, self._path = url, path
        self._identity: tuple[int, int] | None = None
        self.connection: sqlite3.Connection | None = None

    def open(self) -> sqlite3.Connection:
        """The connection, opened if need be. Raise ``sqlite3.Error`` or ``StoreUnavailable``."""
        if self.connection is not None:
            self._check_identity()
            return self.connection
        was_open = self._identity is not None
        if was_open and not self._path.exists():
            raise self._vanished()
        if not was_open:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreUnavailable(f"store {self._url}: its directory cannot be created: {error}") from None
            self._make_private()
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(connection)
            found = os.stat(self._path)
        except BaseException:
            connection.close()
            raise
        self._identity = (found.st_dev, found.st_ino)
        self.connection = connection
        return connection

    def _make_private(self) -> None:
        """Create the file for this user only: it holds the tokens that control workers. An existing file keeps its
        mode; SQLite gives its other files the same mode."""
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError:
            pass  # SQLite reports the error

    def close(self) -> None:
        if self.connection is not None:
            connection, self.connection = self.connection, None
            connection.close()

    def _check_identity(self) -> None:
        """Check for a removed or replaced file: processes that have it open would see another state than new ones."""
        try:
            found = os.stat(self._path)
        except OSError:
            self.close()
            raise self._vanished() from None
        if (found.st_dev, found.st_ino) != self._identity:
            self.close()
            raise StoreUnavailable(f"store {self._url}: the file was replaced by another while it was open; reading it")

    def _vanished(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"store {self._url}: the file was removed while it was open; put it back, or restart the fleet"
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Switching to WAL needs exclusive access and does not wait for it; several processes may start at once.
        give_up = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                    raise
                time.sleep(0.005)
        if mode != "wal":
            raise StoreUnavailable(
                f"store {self._url}: SQLite's write-ahead log does not work there (journal mode {mode}); "
                "the file must be on a local file system"
            )
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
            self._create(connection)

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == SCHEMA_VERSION:
                return
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            has_tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] > 0
            if application == APPLICATION_ID:
                raise StoreUnavailable(
                    f"store {self._url}: the file has schema {version}, this release knows {SCHEMA_VERSION}; "
                    "run the release that wrote it, or a newer one"
                )
            if has_tables or version:
                raise StoreUnavailable(
                    f"store {self._url}: the file is another program's SQLite database; give another path"
                )
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
