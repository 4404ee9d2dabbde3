"""The files of a cache, each checked by its SHA-256 before a process uses it for the first time.

A file is verified when it is fetched. What a disk, or a program that writes through a hard link, does to it later shows
only if it is read again: a damaged one is removed from the blobs, so that it is fetched again.
"""

from __future__ import annotations

import errno
import hashlib
import os
from typing import BinaryIO

import structlog

from isochrone.models.sources.cache.layout import CacheLayout

log = structlog.get_logger(__name__)

_CHUNK = 1 << 20


class Blobs:
    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout
        #: SHA-256 → inode and time of the last write. Not the ctime, which a new link changes.
        self._checked: dict[str, tuple[int, int]] = {}

    def has(self, sha256: str, size: int) -> bool:
        """Whether an undamaged file is here. A damaged one is removed; the trees with it are made anew at their use."""
        try:
            with self._layout.blob(sha256).open("rb") as file:
                status = os.fstat(file.fileno())
                stamp = (status.st_ino, status.st_mtime_ns)
                if self._checked.get(sha256) != stamp:
                    if _sha256(file) != sha256:
                        self._remove(sha256, status.st_ino)
                        return False
                    self._checked[sha256] = stamp
                return status.st_size == size
        except FileNotFoundError:
            return False

    def fetched(self, sha256: str) -> None:
        """A file that was verified just now has its name. The caller holds the lock."""
        status = self._layout.blob(sha256).stat()
        self._checked[sha256] = (status.st_ino, status.st_mtime_ns)

    def _remove(self, sha256: str, inode: int) -> None:
        blob = self._layout.blob(sha256)
        with self._layout.locked():
            # Another process may have replaced it meanwhile.
            if blob.stat().st_ino == inode:
                blob.unlink()
                log.warning("a file of the model cache is damaged; it is fetched again", file=str(blob))


def _sha256(file: BinaryIO) -> str:
    """ "": the disk cannot read it."""
    total = hashlib.sha256()
    try:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return ""
    return total.hexdigest()
