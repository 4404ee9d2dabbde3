"""A file of weights that torch reads without the interpreter's lock.

Given a path, torch reads each tensor in one call that holds the lock: requests to other models waited 0.3 s for a
tensor of 256 MB. Given an object, it calls ``readinto``; the lock is free while the operating system copies.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

#: Bytes of one read: a large one would keep a thread that wants to stop the load waiting.
_PIECE = 4 << 20


class UnlockedFile(io.RawIOBase):
    """``readinto`` fills the whole buffer, as torch expects; at the file's end it returns what there was."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with this object

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view):
            count = self._file.readinto(view[filled : filled + _PIECE])
            if not count:
                break
            filled += count
        return filled

    def close(self) -> None:
        self._file.close()
        super().close()
