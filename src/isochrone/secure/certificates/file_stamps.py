"""Whether files have changed since they were last read, by their status alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
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
