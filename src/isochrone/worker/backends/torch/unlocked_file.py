"""A file of weights that torch reads without the interpreter's lock.

Given a path, torch reads each tensor in one call that holds the lock: requests to other models waited 0.3 s for a
tensor of 256 MB. Given an object, it calls ``readinto``; the lock is free while the operating system copies.

Up to torch 2.11, tensors of exported programs are then copied once more, into bytes: ``read_into_tensors`` prevents it.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

#: Bytes of one read: a large one would keep a thread that wants to stop the load waiting.
_PIECE = 4 << 20


#: Smallest record of an archive that is read into a tensor.
LARGE_RECORD = 1 << 20


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


def read_into_tensors(torch: Any) -> None:
    """Makes torch's reader of exported programs return large records as arrays of tensors' memory, without a copy.

    For the process, once. It changes torch's own class, and leaves it alone where torch has another one by now.
    """
    try:
        from torch.export.pt2_archive._package import PT2ArchiveReader as Reader
    except ImportError:
        return
    original = getattr(Reader, "read_bytes", None)
    if original is None or getattr(original, "reads_into_tensors", False):
        return

    def read_bytes(self: Any, name: str) -> Any:
        try:
            size = self.archive_file.get_record_size(name)
            if size < LARGE_RECORD:
                return original(self, name)
            raw = self.archive_file.get_storage_from_record(name, size, torch.uint8)
            # As torch does it itself: what comes back is no proper tensor.
            return torch.empty(0, dtype=torch.uint8).set_(raw.untyped_storage(), 0, (size,), (1,)).numpy()
        except (AttributeError, TypeError):
            return original(self, name)

    read_bytes.reads_into_tensors = True  # type: ignore[attr-defined]
    Reader.read_bytes = read_bytes
