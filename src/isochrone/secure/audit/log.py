"""One process's audit log: the chain, its segments and its seal. Blocking; any thread may call it.

What ``write`` returns for is on the disk, with a seal over it. What it raises for is not there: a part that was written
is cut off again, and the chain goes on from the record before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from isochrone.errors import FlagError
from isochrone.secure.audit.actor import PROCESS, Actor
from isochrone.secure.audit.failures import cannot_write
from isochrone.secure.audit.keys import read_key
from isochrone.secure.audit.records import DONE, RETENTION, SEGMENT, START, STOP, Entry, line_of
from isochrone.secure.audit.recovery import End, find_end
from isochrone.secure.audit.redaction import Redaction
from isochrone.secure.audit.retention import expired
from isochrone.secure.audit.seals import sealed, write_seal
from isochrone.secure.audit.segments import LOCK, NO_LINK, segment_path, segments_in, sync_directory, write_all
from isochrone.secure.audit.settings import AuditSettings

log = structlog.get_logger(__name__)

#: Of the format, in the first record of each segment.
_VERSION: Final = 1
_DAY_NS: Final = 86_400 * 1_000_000_000
_NO_FILE: Final = -1
#: Records that are made without a pause, and pauses of one write. The event loop insists on the interpreter's lock only
#: after 5 ms: without pauses, every request that arrives beside a large write would wait that long.
_LEAST_PIECE: Final = 32
_MOST_PIECES: Final = 32
_PAUSE_SECONDS: Final = 50e-6
#: For a write under way when the log is closed.
_CLOSE_SECONDS: Final = 10.0


class AuditLog:
    """Only one process at a time writes a log: ``open`` takes its lock."""

    def __init__(self, settings: AuditSettings, clock: Callable[[], int] = time.time_ns) -> None:
        """Raises ``FlagError`` for the key. ``clock``: the wall clock, which may go backwards."""
        self.settings = settings
        self.directory = settings.log_directory
        self._clock = clock
        self._key = read_key(settings.key_file)
        self._redaction = Redaction(settings.redact, self._key)
        self._actor = Actor(settings.name, PROCESS)
        self._lock = threading.Lock()
        self._held = self._file = _NO_FILE
        self._end = End("")
        #: Bytes of the segment that are records, and when it began.
        self._size = 0
        self._began_ns = 0

    def open(self) -> None:
        """Raises ``FlagError`` where the log is another process's, and ``OSError``."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o750)
        self._take_lock()
        try:
            self._end = end = find_end(self.directory, self._key)
            if end.segment:
                self._open_segment(end.segment, os.O_APPEND)
                self._size = os.fstat(self._file).st_size
                self._began_ns = end.began_ns
            if "problem" in end.notes:
                log.error("the audit log is not as it was left", directory=str(self.directory), **end.notes)
            self._write([self._own(START, {"pid": os.getpid(), **end.notes})])
            self._retain()
        except BaseException:
            self._close_files()
            raise

    def close(self) -> None:
        """Notes the end where that can be written."""
        if not self._lock.acquire(timeout=_CLOSE_SECONDS):
            log.error("the audit log is not closed, since a write to it hangs", directory=str(self.directory))
            return
        try:
            if self._file == _NO_FILE:
                return
            self._write([self._own(STOP, {"pid": os.getpid()})])
        except OSError as error:
            log.error("the end of the audit log could not be written", error=str(error))
        finally:
            self._close_files()
            self._lock.release()

    @property
    def head(self) -> tuple[int, str]:
        """The number and the hash of the last record."""
        return self._end.sequence, self._end.hash

    def write(self, entries: Sequence[Entry]) -> int:
        """The sequence number of the last record. Raises ``AuditUnavailable``: then none of them is in the log."""
        with self._lock:
            try:
                self._write(entries)
                return self._end.sequence
            except OSError as error:
                raise cannot_write(self.directory, error.strerror or str(error)) from None

    # Below, the lock is held, or the log is being opened.

    def _write(self, entries: Sequence[Entry]) -> None:
        if self._file == _NO_FILE and self._end.segment:
            raise OSError(None, "it is closed")
        if self._is_due():
            self._begin_segment()
            self._append(entries)
            self._retain()
        else:
            self._append(entries)

    def _append(self, entries: Sequence[Entry]) -> None:
        end = self._end
        sequence, digest = end.sequence, end.hash
        lines = []
        redact = self._redaction.apply
        piece = max(_LEAST_PIECE, -(-len(entries) // _MOST_PIECES))
        for begin in range(0, len(entries), piece):
            if begin:
                time.sleep(_PAUSE_SECONDS)
            for entry in entries[begin : begin + piece]:
                sequence += 1
                line, digest = line_of(redact(entry), sequence, digest)
                lines.append(line)
        data = b"".join(lines)
        try:
            self._check_file()
            # Of a write that failed, and whose part could not be cut off then.
            os.ftruncate(self._file, self._size)
            write_all(self._file, data)
            os.fdatasync(self._file)
            write_seal(self.directory, sealed(end.log, end.segment, sequence, digest, self._key))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        end.sequence, end.hash = sequence, digest
        self._size += len(data)

    def _is_due(self) -> bool:
        """Whether a segment begins: the first, after a full one, or after a day, so that retention has whole days."""
        if self._file == _NO_FILE or self._size >= self.settings.segment_bytes:
            return True
        return self._clock() - self._began_ns >= _DAY_NS

    def _begin_segment(self) -> None:
        before, number = self._file, self._next_number()
        path = segment_path(self.directory, number)
        earlier = self._end.segment, self._size, self._began_ns
        self._open_segment(number, os.O_APPEND | os.O_CREAT | os.O_EXCL)
        self._end.segment, self._size, self._began_ns = number, 0, self._clock()
        details = {"log": self._end.log, "segment": number, "version": _VERSION, "keyed": self._key is not None}
        try:
            sync_directory(self.directory)
            self._append([self._own(SEGMENT, details)])
        except OSError:
            os.close(self._file)
            self._file = before
            self._end.segment, self._size, self._began_ns = earlier
            path.unlink(missing_ok=True)
            raise
        if before != _NO_FILE:
            os.close(before)

    def _next_number(self) -> int:
        numbers = [segment.number for segment in segments_in(self.directory)]
        return max(self._end.segment, *numbers, 0) + 1 if numbers else self._end.segment + 1

    def _open_segment(self, number: int, flags: int) -> None:
        path = segment_path(self.directory, number)
        self._file = os.open(path, os.O_WRONLY | NO_LINK | flags, 0o640)

    def _check_file(self) -> None:
        """A file that was removed or replaced takes records that nobody will ever see."""
        there, here = os.stat(segment_path(self.directory, self._end.segment)), os.fstat(self._file)
        if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
            raise OSError(None, "its segment was replaced")

    def _retain(self) -> None:
        """Deletes expired segments, once their checkpoint is on the disk. What cannot be deleted now stays."""
        try:
            gone = expired(segments_in(self.directory), self.settings.keep_days, self._clock() / 1e9)
            if gone is None:
                return
            self._append([self._own(RETENTION, {**gone.checkpoint, "keep_days": self.settings.keep_days})])
            for segment in gone.segments:
                segment.path.unlink()
            sync_directory(self.directory)
        except OSError as error:
            # The records before are in the log: this must not refuse what they stand for.
            log.warning("old segments of the audit log could not be deleted", error=str(error))

    def _own(self, action: str, details: dict[str, Any]) -> Entry:
        return Entry(self._clock(), self._actor, action, self.settings.name, DONE, details)

    def _take_lock(self) -> None:
        self._held = os.open(self.directory / LOCK, os.O_RDWR | os.O_CREAT | NO_LINK, 0o640)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._held)
            self._held = _NO_FILE
            raise FlagError(
                "--audit",
                "a directory whose log no other process writes; give each process its own --name",
                f"{self.directory}, which another process has",
            ) from None

    def _close_files(self) -> None:
        for opened in (self._file, self._held):
            if opened != _NO_FILE:
                os.close(opened)
        self._file = self._held = _NO_FILE


def is_being_written(directory: os.PathLike[str]) -> bool:
    """Whether a process has the lock of a log."""
    try:
        opened = os.open(os.path.join(directory, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(opened)
    return False
