"""File stamps: size, times and inode, which show that a file was written without reading it.

``digest`` and ``onnx_file`` use them to read a large file once and not at every load. The stamp of a recently written
file proves nothing and must not be used as a key.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from isochrone.errors import ConfigError

#: A younger file may be written again within one tick of the file system's clock and keep its stamp: kernels use ticks
#: of up to 10 ms, some file systems 2 s (FAT).
_SETTLED_NS = 2_000_000_000


class FileStamp(NamedTuple):
    size: int
    modified_ns: int
    #: Programs cannot set it: it also reveals a copy that keeps ``modified_ns``.
    changed_ns: int
    inode: int
    device: int

    @property
    def is_settled(self) -> bool:
        """Whether the file is old enough that a later write changes its stamp."""
        return time.time_ns() - self.modified_ns > _SETTLED_NS


def stamp(path: Path) -> FileStamp:
    """The stamp of a file; links are followed."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise ConfigError(str(path), "file", "a readable file", error.strerror or str(error)) from None
    return FileStamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
