"""System shared-memory regions that clients registered, for tensors that are not in a request's body.

A transport uses a ``view`` of a region instead of bytes from the wire, and holds the regions of a request until its
answer is written: a held region cannot be unregistered. A client names POSIX shared memory by its key; the key is
looked up in /dev/shm only, and no link is followed. A client that truncates its memory while a view is being read
terminates the server with SIGBUS; this cannot be prevented, so shared memory is off by default.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from isochrone.errors import AlreadyExists, InvalidArgument, NotFound, PayloadTooLarge, Unavailable
from isochrone.protocol.tensors.datatypes import shown

_KEY = re.compile(r"/?[A-Za-z0-9_.-]{1,250}", re.ASCII)
_FOLDER = "/dev/shm"

#: Each region uses a file descriptor, of which a process has 1,024 by default.
MAX_REGIONS = 256


@dataclass(frozen=True, slots=True)
class SharedMemoryRegion:
    """A region as the status call reports it; sizes in bytes."""

    name: str
    key: str
    offset: int
    byte_size: int


class SharedMemoryRegions:
    """The regions registered with this server, by name. For the event loop's thread only; any thread may use views."""

    def __init__(self) -> None:
        self._regions: dict[str, tuple[SharedMemoryRegion, mmap.mmap, int]] = {}
        #: Name → number of requests that hold the region; no entry: none.
        self._holders: dict[str, int] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map ``byte_size`` bytes at ``offset`` of the shared memory ``key`` as the region ``name``."""
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"failed to register shared memory region: expected a name, given {shown(name)}")
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")
        where = f"failed to register shared memory region {shown(name)}"
        if not isinstance(key, str) or not _KEY.fullmatch(key) or ".." in key or key.strip("/") == ".":
            raise InvalidArgument(
                f"{where}: key {shown(key)} must be 1 to 250 letters, digits, '_', '.' or '-', "
                "with at most one leading '/' and without '..'"
            )
        if not _is_size(offset) or not _is_size(byte_size) or byte_size < 1:
            raise InvalidArgument(
                f"{where}: expected offset 0 or more and byte_size 1 or more, "
                f"given {shown(offset)} and {shown(byte_size)}"
            )
        if len(self._regions) >= MAX_REGIONS:
            raise PayloadTooLarge(f"{where}: {MAX_REGIONS} regions are registered, which is the limit")
        memory, start = _map(where, key, offset, byte_size)
        self._regions[name] = (SharedMemoryRegion(name, key, offset, byte_size), memory, start)

    def unregister(self, name: str = "") -> None:
        """Unregister a region, or all regions if the name is empty. As in Triton, an unknown name is no error.

        A region that a request holds stays registered, and the call fails; without a name the others are removed.
        """
        # Not closed explicitly: the mapping ends with its last view. close() would unmap it under arrays whose library
        # kept the address and released the buffer.
        if name:
            if name in self._holders:
                raise Unavailable(f"Cannot unregister shared memory region {shown(name)}, it is currently in use.")
            self._regions.pop(name, None)
            return
        self._regions = {name: entry for name, entry in self._regions.items() if name in self._holders}
        if self._regions:
            held = " ,".join(self._regions)
            raise Unavailable(f"Failed to unregister the following system shared memory regions: {held} ,")

    def hold(self, names: Iterable[str]) -> None:
        """A request holds these regions until ``release`` is called with the same names."""
        for name in names:
            self._holders[name] = self._holders.get(name, 0) + 1

    def release(self, names: Iterable[str]) -> None:
        for name in names:
            left = self._holders[name] - 1
            if left:
                self._holders[name] = left
            else:
                del self._holders[name]

    def status(self, name: str = "") -> list[SharedMemoryRegion]:
        """The region of that name, or every region if the name is empty."""
        if not name:
            return [region for region, _, _ in self._regions.values()]
        entry = self._regions.get(name)
        if entry is None:
            raise NotFound(f"Unable to find system shared memory region: {shown(name)}")
        return [entry[0]]

    def view(self, name: str, offset: int, byte_size: int) -> memoryview:
        """A writable view of a region; ``offset`` is relative to the region's start."""
        entry = self._regions.get(name) if isinstance(name, str) else None
        if entry is None:
            raise NotFound(f"Unable to find shared memory region: {shown(name)}")
        region, memory, start = entry
        if not (_is_size(offset) and _is_size(byte_size) and offset + byte_size <= region.byte_size):
            # Triton's wording.
            wrong = "offset" if not _is_size(offset) or offset >= region.byte_size else "offset + byte size"
            raise InvalidArgument(
                f"Invalid {wrong} for shared memory region: {shown(name)}: "
                f"asked for {shown(byte_size)} bytes at offset {shown(offset)}, "
                f"the region has {region.byte_size}"
            )
        # The client may have truncated its memory; reading beyond its end raises SIGBUS. size() is an fstat.
        remaining = memory.size() - region.offset
        if offset + byte_size > remaining:
            raise InvalidArgument(
                f"shared memory region {shown(name)}: asked for {byte_size} bytes at offset {offset}, "
                f"but its memory '{region.key}' now ends {max(remaining, 0)} bytes after the region's start"
            )
        begin = start + offset
        return memoryview(memory)[begin : begin + byte_size]


def cuda_regions(name: str = "") -> list[SharedMemoryRegion]:
    """The CUDA regions: always none, as in Triton without a GPU. Clients ask for them when they start."""
    if name:
        raise NotFound(f"Unable to find cuda shared memory region: {shown(name)}")
    return []


def reject_cuda_region(name: str) -> NoReturn:
    raise InvalidArgument(
        f"failed to register shared memory region: invalid args: region {shown(name)} is CUDA shared memory, "
        "which this server does not have"
    )


def _is_size(value: int) -> bool:
    # REST passes JSON values of any type.
    return type(value) is int and value >= 0


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
