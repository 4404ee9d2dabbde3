"""Whether files have changed since they were last loaded, by their status alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

#: Device, inode, time and size of each file; None for a file that is missing. Links are followed: Kubernetes and
#: cert-manager change where a directory points to, and the files in it are new ones then.
Stamp = tuple[tuple[int, int, int, int] | None, ...]


def stamp_of(paths: Iterable[Path]) -> Stamp:
    """Equal stamps: the files were not replaced or written meanwhile."""
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


class FollowedFiles:
    """Files that a process loads, and loads again when they change."""

    __slots__ = ("_failed", "_loaded", "_paths")

    def __init__(self, paths: Sequence[Path]) -> None:
        """Before they are loaded: what changes meanwhile is loaded again."""
        self._paths = tuple(paths)
        self._loaded = stamp_of(self._paths)
        #: Files that could not be loaded, and how often.
        self._failed: tuple[Stamp, int] | None = None

    def changed(self) -> Stamp | None:
        """The stamp of files that differ from those that are loaded; None: they do not."""
        stamp = stamp_of(self._paths)
        if stamp == self._loaded:
            self._failed = None
            return None
        return stamp

    def loaded(self, stamp: Stamp) -> None:
        self._loaded, self._failed = stamp, None

    def failed(self, stamp: Stamp) -> bool:
        """These files cannot be loaded; returns whether to say so. Files are replaced one by one, and at the first look
        they may not fit yet: so at the second look, once."""
        count = self._failed[1] + 1 if self._failed is not None and self._failed[0] == stamp else 1
        self._failed = (stamp, count)
        return count == 2
