"""Translates SQLite's errors into messages with a remedy."""

from __future__ import annotations

import sqlite3

from isochrone.store.base import StoreUnavailable

#: By primary result code (https://www.sqlite.org/rescode.html): the problem and its remedy.
_SENTENCES = {
    "SQLITE_FULL": "the disk is full, nothing was written; free some space, and writing resumes",
    "SQLITE_READONLY": "the file or its directory is read-only; make both writable for this user",
    "SQLITE_PERM": "this user may not open the file; make it and its directory writable for this user",
    "SQLITE_CANTOPEN": "the file cannot be opened; its directory must exist and be writable for this user",
    "SQLITE_BUSY": "another process has held its lock for too long; look for a process that is paused or hangs",
    "SQLITE_LOCKED": "another process has held its lock for too long; look for a process that is paused or hangs",
    "SQLITE_IOERR": "the disk failed to read or write; check its free space and the kernel's log",
    "SQLITE_CORRUPT": "the file is damaged; stop the fleet, move the file away, and put a backup there or apply "
    "fleet.yaml to a new one",
    "SQLITE_NOTADB": "the file is not an SQLite database; give another path, or move the file away",
    "SQLITE_PROTOCOL": "its locks do not work; the file must be on a local file system",
}

#: After these errors the connection itself may be broken: it is closed, and opened again on the next use.
_BREAKING = frozenset(
    ("SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PROTOCOL")
)


def _primary(error: sqlite3.Error) -> str:
    """For example SQLITE_IOERR of SQLITE_IOERR_WRITE."""
    return "_".join(getattr(error, "sqlite_errorname", "SQLITE_ERROR").split("_")[:2])


def breaks_connection(error: sqlite3.Error) -> bool:
    return _primary(error) in _BREAKING


def unavailable(url: str, error: sqlite3.Error) -> StoreUnavailable:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    sentence = _SENTENCES.get(_primary(error), "SQLite failed")
    return StoreUnavailable(f"store {url}: {sentence} ({name}: {error})")
