"""What tells that a file was written, without reading it: size, times, inode.

``digest`` and ``onnx_file`` go by it to read a large file once and not at every load of its model. A stamp is no proof
while the file is fresh: then nothing may be remembered by it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from isochrone.errors import ConfigError

#: A file written less than this before it was looked at may be written again within one tick of its clock, and look the
#: same: kernels stamp files by the tick (up to 10 ms), some file systems by 2 s (FAT).
_SETTLED_NS = 2_000_000_000


class FileStamp(NamedTuple):
    size: int
    modified_ns: int
    #: Cannot be set by programs, as the other can: a copy that keeps times is seen too.
    changed_ns: int
    inode: int
    device: int

    @property
    def is_settled(self) -> bool:
        """Whether the file was left alone for long enough that a later write must show."""
        return time.time_ns() - self.modified_ns > _SETTLED_NS


def stamp(path: Path) -> FileStamp:
    """Of the file itself, where ``path`` is a link to it."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise ConfigError(str(path), "file", "a readable file", error.strerror or str(error)) from None
    return FileStamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
