"""Writes the fleet's access rules to the store: follows the access file on the leader's machine.

A file with errors changes nothing. Nor does one that is older than the rules in force: another controller's machine may
have a copy that was not updated, and a token that was revoked must not come back with it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import structlog

from isochrone.control.leader.records import LeaderRecords
from isochrone.control.state.codec import encode
from isochrone.control.state.records import AccessRecord
from isochrone.control.state.view import View
from isochrone.errors import ConfigError
from isochrone.secure.access.document import parse_access
from isochrone.settings.documents import parse_document, read_text
from isochrone.store.base import Put

log = structlog.get_logger(__name__)

#: Seconds between two looks at the file.
_INTERVAL = 0.5


class AccessPublishing:
    """Of one controller. ``path`` None: it has no file, and another controller's counts."""

    def __init__(self, records: LeaderRecords, path: Path | None, name: str) -> None:
        self._records = records
        self._path = path
        self._name = name
        self._stamp: tuple[float, int, int] | None = None
        self._document: dict[str, Any] | None = None
        self._looked_at = 0.0
        #: Of the records that this controller has read: the highest generation, and when the latest file was written. A
        #: record that was deleted, or is refused, does not let an older file in.
        self._generation, self._written = 0, 0.0
        #: The record that is newer than the file, as it was logged.
        self._said_of = -1
        #: The last errors of writing and of the file, as they were logged.
        self._fault = self._unread = ""

    async def reconcile(self, view: View) -> None:
        """Write what the file says, if it says something else."""
        if self._path is None or time.monotonic() - self._looked_at < _INTERVAL:
            return
        self._looked_at = time.monotonic()
        try:
            await self._publish(self._path, view)
        except Exception as error:
            # A file that is too large for the store, or makes no sense, must not end the control of the fleet.
            if str(error) != self._fault:
                log.error("the access rules cannot be written to the store", exc_info=error)
            self._fault = str(error)

    async def _publish(self, path: Path, view: View) -> None:
        await asyncio.to_thread(self._look, path)
        record = view.access
        if record is not None:
            self._generation = max(self._generation, record.generation)
            self._written = max(self._written, record.written)
        if self._document is None or self._stamp is None:
            return
        written = self._stamp[0]
        if self._written > written:
            self._say_old(path, self._generation)
            return
        if record is not None and record.document == self._document and record.written == self._written:
            return
        generation = self._generation + 1
        new = AccessRecord(generation, self._document, written, self._name, time.time())
        key = self._records.keys.access
        event = self._records.event(self._name, "access rules", "", f"generation {generation}")
        if await self._records.write((view.unchanged(key),), (Put(key, encode(new)), event)):
            log.info("access rules written to the store", generation=generation, path=str(path))

    def _look(self, path: Path) -> None:
        """In a thread: a file of a thousand tokens takes a while."""
        try:
            found = path.stat()
            stamp = (found.st_mtime, found.st_size, found.st_ino)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            document = parse_document(read_text(path, "an access file"), str(path))
            parse_access(document)
            # As the processes read it: dates are texts.
            self._document = msgspec.json.decode(msgspec.json.encode(document.data))
            self._unread = ""
        except (ConfigError, OSError, TypeError) as error:
            self._document = None
            if str(error) != self._unread:
                log.error("the access file cannot be read; the rules in the store stay in force", reason=str(error))
            self._unread = str(error)

    def _say_old(self, path: Path, generation: int) -> None:
        if generation != self._said_of:
            self._said_of = generation
            log.error(
                "the access file of this machine is older than the rules in force and is not used; update it, or touch"
                " it if its rules are to count",
                path=str(path),
            )
