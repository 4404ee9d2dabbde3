"""One file from a store to the disk: several ranges at a time, resumed where a killed process left off."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from isochrone.models.sources.cache.ranges import end_of, journal_line, missing_ranges, read_journal
from isochrone.models.sources.failures import RangesIgnored

#: More gain little: a store limits each connection, and eight of them fill most links.
_CONNECTIONS = 8
_CHUNK = 1 << 20

Chunks = Callable[[int, int], Iterator[bytes]]


class Download:
    """An unfinished file and its journal. One process at a time."""

    def __init__(self, part: Path, journal: Path, size: int) -> None:
        self._part, self._journal, self._size = part, journal, size

    def create(self) -> None:
        """Give the unfinished file its size, by which it counts in the cache."""
        part = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(part, self._size)
        finally:
            os.close(part)

    def run(self, chunks: Chunks, progress: Callable[[int], None]) -> None:
        """Fetch what is missing. ``progress`` gets the number of bytes that have arrived, from any thread."""
        part = os.open(self._part, os.O_RDWR | os.O_CLOEXEC)
        try:
            _allocate(part, self._size)
            finished = self._resumed(part)
            ranges = missing_ranges(self._size, finished)
            resumed = self._size - sum(end - start for start, end in ranges)
            progress(resumed)
            with open(self._journal, "ab", buffering=0) as journal:
                fetch = _Fetch(part, journal.fileno(), ranges, chunks, progress)
                try:
                    fetch.run()
                except RangesIgnored:
                    progress(-resumed - fetch.arrived)
                    self._run_whole(part, chunks, progress)
        finally:
            os.close(part)

    def _run_whole(self, part: int, chunks: Chunks, progress: Callable[[int], None]) -> None:
        """One stream, without a journal: a store without ranges cannot continue in the middle."""
        at = 0
        for chunk in chunks(0, self._size):
            _write(part, chunk, at)
            at += len(chunk)
            progress(len(chunk))

    def discard(self) -> None:
        self._part.unlink(missing_ok=True)
        self._journal.unlink(missing_ok=True)

    def digests(self, *, with_md5: bool) -> tuple[str, str]:
        """SHA-256 and, if asked for, MD5 of the whole file, which is then on the disk."""
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        with self._part.open("rb") as file:
            while chunk := file.read(_CHUNK):
                sha256.update(chunk)
                if with_md5:
                    md5.update(chunk)
            os.fsync(file.fileno())
        return sha256.hexdigest(), md5.hexdigest() if with_md5 else ""

    def _resumed(self, part: int) -> set[int]:
        try:
            stated = read_journal(self._journal.read_bytes(), self._size)
        except FileNotFoundError:
            return set()
        return {start for start, crc in stated.items() if _crc(part, start, end_of(start, self._size)) == crc}


class _Fetch:
    """The threads of one download. The first failure ends all of them."""

    def __init__(
        self,
        part: int,
        journal: int,
        ranges: list[tuple[int, int]],
        chunks: Chunks,
        progress: Callable[[int], None],
    ) -> None:
        self._part, self._journal, self._chunks, self._progress = part, journal, chunks, progress
        self._ranges = iter(ranges)
        self._count = min(_CONNECTIONS, len(ranges))
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        #: Bytes that were reported as progress.
        self.arrived = 0

    def run(self) -> None:
        # Daemons: a worker that stops does not wait for them.
        threads = [threading.Thread(target=self._work, name="fetching", daemon=True) for _ in range(self._count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            while (found := self._next()) is not None:
                self._fetch(*found)
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error

    def _next(self) -> tuple[int, int] | None:
        with self._lock:
            return None if self._failure is not None else next(self._ranges, None)

    def _fetch(self, start: int, end: int) -> None:
        at, crc = start, 0
        for chunk in self._chunks(start, end):
            if self._failure is not None:
                return
            _write(self._part, chunk, at)
            at, crc = at + len(chunk), zlib.crc32(chunk, crc)
            with self._lock:
                self.arrived += len(chunk)
            self._progress(len(chunk))
        os.write(self._journal, journal_line(start, crc))


def _write(file: int, content: bytes, at: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def _allocate(file: int, size: int) -> None:
    """Give the file its blocks: a full disk shows before the first byte is fetched."""
    try:
        if size:
            os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def _crc(file: int, start: int, end: int) -> int:
    crc = 0
    while start < end and (chunk := os.pread(file, min(_CHUNK, end - start), start)):
        crc, start = zlib.crc32(chunk, crc), start + len(chunk)
    return crc
