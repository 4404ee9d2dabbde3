"""Writes the fleet's access rules to the store: follows the access file on the leader's machine. Why it is not followed
is an event, and a record that ``isochrone status`` shows until the file is mended.

A file with errors changes nothing. Nor does one that is older than the rules in force: another controller's machine may
have a copy that was not updated, and a token that was revoked must not come back with it.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import structlog

from isochrone.control.leader.records import LeaderRecords
from isochrone.control.state.codec import encode
from isochrone.control.state.records import AccessFaultRecord, AccessRecord
from isochrone.control.state.view import View
from isochrone.errors import ConfigError
from isochrone.secure.access.administration import has_administrator
from isochrone.secure.access.document import parse_access
from isochrone.secure.access.tokens import PREFIX
from isochrone.settings.documents import parse_document, read_text
from isochrone.store.base import Delete, Put

log = structlog.get_logger(__name__)

#: Seconds between two looks at the file.
_INTERVAL = 0.5
#: Errors quote the file, and a token may stand in it by mistake.
_TOKEN = re.compile(rf"{PREFIX}[A-Za-z0-9_-]+")
#: The file can be mended on the controller's machine; the control API takes nothing from anybody.
_LOCKED_OUT = "; by them nobody may administer the fleet: assign a role with fleet-admin in the access file"
#: Characters of a reason that are kept: a file may have thousands of errors.
_LONGEST = 1000


class AccessPublishing:
    """Of one controller. ``path`` None: it has no file, and another controller's counts."""

    def __init__(self, records: LeaderRecords, path: Path | None, name: str) -> None:
        self._records = records
        self._path = path
        self._name = name
        self._stamp: tuple[float, int, int] | None = None
        self._document: dict[str, Any] | None = None
        #: Of the document.
        self._has_administrator = True
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
        if time.monotonic() - self._looked_at < _INTERVAL:
            return
        self._looked_at = time.monotonic()
        reason = "" if self._path is None else await self._follow(self._path, view)
        try:
            await self._report(reason, view)
        except Exception as error:
            # The reason is in the log, and the next look reports it.
            log.debug("the fault of the access file cannot be reported", error=str(error))

    async def _follow(self, path: Path, view: View) -> str:
        """Return why the file does not count; "": it does."""
        try:
            reason = await self._publish(path, view)
        except Exception as error:
            # A file that is too large for the store, or makes no sense, must not end the control of the fleet.
            if str(error) != self._fault:
                log.error("the access rules cannot be written to the store", exc_info=error)
            self._fault = str(error)
            return f"its rules cannot be written to the store: {error}"
        self._fault = ""
        return reason

    async def _report(self, reason: str, view: View) -> None:
        """Keep the record of the fault current, with an event of each change."""
        reason = reason[:_LONGEST]
        key, known = self._records.keys.access_fault, view.access_fault
        if reason == (known.reason if known is not None else "") and not view.is_unreadable(key):
            return
        change: Put | Delete
        if reason:
            change = Put(key, encode(AccessFaultRecord(reason, self._name, time.time())))
            event = self._records.event(self._name, "access file is not used", str(self._path), reason)
        else:
            change = Delete(key)
            # A controller without a file cannot say that one is mended.
            what = "access file is used again" if self._path is not None else "no access file is followed"
            event = self._records.event(self._name, what, str(self._path or ""))
        await self._records.write((view.unchanged(key),), (change, event))

    async def _publish(self, path: Path, view: View) -> str:
        """Return why the file does not count; "": it does."""
        await asyncio.to_thread(self._look, path)
        record = view.access
        if record is not None:
            self._generation = max(self._generation, record.generation)
            self._written = max(self._written, record.written)
        if self._document is None or self._stamp is None:
            return self._unread
        written = self._stamp[0]
        if self._written > written:
            self._say_old(path, self._generation)
            return "it is older than the rules in force; update it, or touch it if its rules are to count"
        if record is not None and record.document == self._document and record.written == self._written:
            return ""
        generation = self._generation + 1
        new = AccessRecord(generation, self._document, written, self._name, time.time())
        key = self._records.keys.access
        text = f"generation {generation}{'' if self._has_administrator else _LOCKED_OUT}"
        event = self._records.event(self._name, "access rules", "", text)
        if await self._records.write((view.unchanged(key),), (Put(key, encode(new)), event)):
            log.info("access rules written to the store", generation=generation, path=str(path))
            if not self._has_administrator:
                log.warning("nobody may administer the fleet by its access rules", path=str(path))
        return ""

    def _look(self, path: Path) -> None:
        """In a thread: a file of a thousand tokens takes a while."""
        try:
            found = path.stat()
            stamp = (found.st_mtime, found.st_size, found.st_ino)
            if stamp == self._stamp:
                return
            # Of a file with errors there is none: rights of it, or a file that it names, may change without its time.
            self._stamp = None
            document = parse_document(read_text(path, "an access file"), str(path))
            self._has_administrator = has_administrator(parse_access(document), time.time())
            # As the processes read it: dates are texts.
            self._document = msgspec.json.decode(msgspec.json.encode(document.data))
            self._unread, self._stamp = "", stamp
        except (ConfigError, OSError, TypeError) as error:
            self._document = self._stamp = None
            reason = _TOKEN.sub(f"{PREFIX}…", str(error))
            if reason != self._unread:
                log.error("the access file cannot be read; the rules in the store stay in force", reason=reason)
            self._unread = reason

    def _say_old(self, path: Path, generation: int) -> None:
        if generation != self._said_of:
            self._said_of = generation
            log.error(
                "the access file of this machine is older than the rules in force and is not used; update it, or touch"
                " it if its rules are to count",
                path=str(path),
            )
