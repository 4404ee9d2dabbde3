"""File stamps: size, times and inode, which show that a file was written without reading it.

``digest``, ``onnx_file`` and ``openvino_file`` use them to read a large file once and not at every load. The stamp of a
recently written file proves nothing and must not be used as a key.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from isochrone.errors import ConfigError

#: A younger file may be written again within one tick of the file system's clock and keep its stamp: kernels use ticks
#: of up to 10 ms, some file systems 2 s (FAT).
_SETTLED_NS = 2_000_000_000

_Content = TypeVar("_Content")


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


def read_if_changed(path: Path, read: Callable[[Path], _Content]) -> _Content:
    """What ``read`` finds in a file, or found in it before if the file was not written since."""
    current = stamp(path)
    return cast("_Content", _remembered(path, current, read)) if current.is_settled else read(path)


@lru_cache(maxsize=512)
def _remembered(path: Path, current: FileStamp, read: Callable[[Path], object]) -> object:
    return read(path)
