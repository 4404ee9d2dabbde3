"""Memory shared by the server and the process of an isolated model.

A block is an anonymous file (memfd): it has no name in /dev/shm that could leak, and is freed with its last descriptor.
The writer of a block grows it; the reader maps it again when a message has a larger size. The server seals it against
shrinking, because access to a removed page would kill the server with SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from isochrone.worker.backends.processes.places import BadPlace, Packing, Place, read_places

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.backends.processes.places import Bytes

_SMALLEST = 64 * 1024


class SharedBlock:
    """One block, mapped as an array of bytes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._bytes: Bytes = np.empty(0, np.uint8)

    @classmethod
    def create(cls, name: str) -> SharedBlock:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return cls(descriptor)

    def close(self) -> None:
        """Closes the descriptor; the memory is freed with the last array that uses it."""
        os.close(self.descriptor)
        self._bytes = np.empty(0, np.uint8)

    def in_use(self) -> bool:
        """Whether any array still uses the block: every view is a reference to the whole."""
        return sys.getrefcount(self._bytes) > 2

    def write(self, tensors: Tensors) -> tuple[list[Place], int]:
        """Copies tensors into the block; returns their places and the size that the reader must map."""
        packing = Packing()
        places = packing.add(tensors)
        self.write_packed(packing)
        return places, packing.size

    def write_packed(self, packing: Packing) -> None:
        self._grow(packing.size)
        packing.write(self._bytes)

    def read(self, places: Iterable[Place], size: int, *, copy: bool) -> Tensors:
        """The tensors at ``places``; without ``copy`` they are views that are valid until the next write."""
        self._map(size)
        return read_places(self._bytes[:size], places, copy=copy)

    def mapped(self, size: int) -> Bytes:
        """The block, of which at least ``size`` bytes are mapped."""
        self._map(size)
        return self._bytes

    def _grow(self, size: int) -> None:
        if size > self._bytes.nbytes and size > os.fstat(self.descriptor).st_size:
            # To the next power of two, so that slowly growing batches do not remap each time.
            os.ftruncate(self.descriptor, max(_SMALLEST, 1 << (size - 1).bit_length()))
        self._map(size)

    def _map(self, size: int) -> None:
        if size > self._bytes.nbytes:
            present = os.fstat(self.descriptor).st_size
            if size > present:
                raise BadPlace(f"{size} bytes in a block of {present}")
            self._bytes = np.frombuffer(mmap.mmap(self.descriptor, present), np.uint8)
