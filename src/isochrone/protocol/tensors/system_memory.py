"""System shared memory: POSIX shared memory that a client names by its key.

The key is looked up in /dev/shm only, and no link is followed. A client that truncates its memory while a view is being
read terminates the server with SIGBUS; this cannot be prevented, so shared memory is off by default.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from dataclasses import dataclass
from typing import Any

from isochrone.devices.cuda.client_pages import CLIENT_PAGES
from isochrone.devices.device_array import DeviceArray, on_host
from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.datatypes import shown
from isochrone.protocol.tensors.regions import Region, is_size

_KEY = re.compile(r"/?[A-Za-z0-9_.-]{1,250}", re.ASCII)
_FOLDER = "/dev/shm"


@dataclass(frozen=True, slots=True)
class SharedMemoryRegion:
    """A region as the status call reports it; sizes in bytes."""

    name: str
    key: str
    offset: int
    byte_size: int


class SystemRegion(Region):
    """A mapping of ``byte_size`` bytes at ``offset`` of the shared memory ``key``."""

    kind = "system"

    def __init__(self, name: str, key: str, offset: int, byte_size: int) -> None:
        where = f"failed to register shared memory region {shown(name)}"
        if not isinstance(key, str) or not _KEY.fullmatch(key) or ".." in key or key.strip("/") == ".":
            raise InvalidArgument(
                f"{where}: key {shown(key)} must be 1 to 250 letters, digits, '_', '.' or '-', "
                "with at most one leading '/' and without '..'"
            )
        if not is_size(offset) or not is_size(byte_size) or byte_size < 1:
            raise InvalidArgument(
                f"{where}: expected offset 0 or more and byte_size 1 or more, "
                f"given {shown(offset)} and {shown(byte_size)}"
            )
        super().__init__(name, byte_size)
        self.key = key
        self.offset = offset
        self._memory, self._start = _map(where, key, offset, byte_size)
        # A GPU that reads inputs from it pins it.
        self._pages = CLIENT_PAGES.offer(memoryview(self._memory))

    def status(self) -> SharedMemoryRegion:
        return SharedMemoryRegion(self.name, self.key, self.offset, self.byte_size)

    def read(self, offset: int, byte_size: int) -> memoryview:
        """A writable view."""
        # The client may have truncated its memory; reading beyond its end raises SIGBUS. size() is an fstat.
        remaining = self._memory.size() - self.offset
        if offset + byte_size > remaining:
            raise InvalidArgument(
                f"shared memory region {shown(self.name)}: asked for {byte_size} bytes at offset {offset}, "
                f"but its memory '{self.key}' now ends {max(remaining, 0)} bytes after the region's start"
            )
        begin = self._start + offset
        return memoryview(self._memory)[begin : begin + byte_size]

    def write(self, offset: int, byte_size: int, data: Any) -> int:
        if isinstance(data, DeviceArray):
            data = on_host(data.foreign).tobytes()
        if len(data) <= byte_size:
            self.read(offset, len(data))[:] = data
        return len(data)

    def close(self) -> None:
        CLIENT_PAGES.withdraw(self._pages)
        # Not closed explicitly: the mapping ends with its last view. close() would unmap it under arrays whose library
        # kept the address and released the buffer.
        del self._memory


def _map(where: str, key: str, offset: int, byte_size: int) -> tuple[mmap.mmap, int]:
    """The mapping, and the region's start in it: a mapping begins at a multiple of the page size."""
    path = os.path.join(_FOLDER, key.removeprefix("/"))
    try:
        # O_NONBLOCK: opening a named pipe must not block; it is rejected below.
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidArgument(f"{where}: Unable to open shared memory region: '{key}': {error.strerror}") from None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise InvalidArgument(f"{where}: '{key}' is not shared memory but another kind of file")
        if offset + byte_size > about.st_size:
            raise InvalidArgument(
                f"{where}: Invalid shared memory region: '{key}': asked for {shown(byte_size)} bytes at offset "
                f"{shown(offset)}, it has {about.st_size}"
            )
        start = offset % mmap.ALLOCATIONGRANULARITY
        return mmap.mmap(descriptor, start + byte_size, offset=offset - start), start
    except (OSError, OverflowError, ValueError) as error:
        raise InvalidArgument(f"{where}: unable to map shared memory '{key}': {error}") from None
    finally:
        # mmap keeps a descriptor of its own.
        os.close(descriptor)
