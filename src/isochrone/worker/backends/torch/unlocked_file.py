"""A file of weights that torch reads without the interpreter's lock.

Given a path, torch reads each tensor in one call that holds the lock: requests to other models waited 0.3 s for a
tensor of 256 MB. Given an object, it calls ``readinto``; the lock is free while the operating system copies.

Up to torch 2.11, tensors of exported programs are then copied once more, into bytes: ``records_in_place`` prevents it.
"""

from __future__ import annotations

import io
import os
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

#: Bytes of one read: a large one would keep a thread that wants to stop the load waiting.
_PIECE = 4 << 20


#: Smallest record of an archive that is read into a tensor, and where tensors are in it.
LARGE_RECORD = 1 << 20
_TENSORS = ("data/weights/", "data/constants/")


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


class _Reading(threading.local):
    """The sizes of the records of the archive that this thread reads, by name."""

    sizes: Mapping[str, int] = MappingProxyType({})


_reading = _Reading()


@contextmanager
def records_in_place(torch: Any, path: Path) -> Iterator[None]:
    """torch's reader of exported programs, on this thread, returns large records as arrays of tensors' memory.

    It changes torch's own class, once, and leaves it alone where torch has another one by now.
    """
    _change_reader(torch)
    try:
        # What is no archive, torch says itself.
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            # All records are in one folder, whose name torch leaves out.
            _reading.sizes = {each.filename.partition("/")[2]: each.file_size for each in archive.infolist()}
        yield
    finally:
        _reading.sizes = MappingProxyType({})


def _change_reader(torch: Any) -> None:
    try:
        from torch.export.pt2_archive._package import PT2ArchiveReader as Reader
    except ImportError:
        return
    original = getattr(Reader, "read_bytes", None)
    if original is None or getattr(original, "reads_into_tensors", False):
        return

    def read_bytes(self: Any, name: str) -> Any:
        size = _reading.sizes.get(name, 0)
        if size < LARGE_RECORD or not name.startswith(_TENSORS):
            return original(self, name)
        raw = self.archive_file.get_storage_from_record(name, size, torch.uint8)
        # As torch does it itself: what comes back is no proper tensor.
        return torch.empty(0, dtype=torch.uint8).set_(raw.untyped_storage(), 0, (size,), (1,)).numpy()

    read_bytes.reads_into_tensors = True  # type: ignore[attr-defined]
    Reader.read_bytes = read_bytes
