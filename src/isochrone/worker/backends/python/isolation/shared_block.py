"""Memory shared by the server and the process of an isolated model, and the tensors in it.

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

import msgspec
import numpy as np

from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.binary import decode_bytes, encode_bytes
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME, element_count
from isochrone.worker.backends.datatypes import datatype_of

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors

_SMALLEST = 64 * 1024
_ALIGNMENT = 64  # a cache line, and more than any vector instruction needs


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One tensor's place in a block."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class BadPlace(Exception):
    """The other side described a tensor that is not inside its block."""


class SharedBlock:
    """One block, mapped as an array of bytes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._bytes: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.empty(0, np.uint8)

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
        encoded = {name: encode_bytes(array) if array.dtype == np.object_ else b"" for name, array in tensors.items()}
        places = []
        size = 0
        for name, array in tensors.items():
            nbytes = len(encoded[name]) if array.dtype == np.object_ else array.nbytes
            places.append(Place(name, datatype_of(array.dtype), array.shape, size, nbytes))
            size += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._grow(size)
        for place, array in zip(places, tensors.values(), strict=True):
            room = self._bytes[place.offset : place.offset + place.nbytes]
            if array.dtype == np.object_:
                room[:] = np.frombuffer(encoded[place.name], np.uint8)
            else:
                room.view(array.dtype).reshape(array.shape)[...] = array
        return places, size

    def read(self, places: Iterable[Place], size: int, *, copy: bool) -> Tensors:
        """The tensors at ``places``; without ``copy`` they are views that are valid until the next write."""
        self._map(size)
        tensors: Tensors = {}
        for place in places:
            dtype = NUMPY_BY_NAME.get(place.datatype)
            if dtype is None or not 0 <= place.offset <= place.offset + place.nbytes <= size:
                raise BadPlace(f"{place} in a block of {size} bytes")
            room = self._bytes[place.offset : place.offset + place.nbytes]
            try:
                count = element_count(place.shape, place.name)
                if dtype == np.object_:
                    tensors[place.name] = decode_bytes(room.data, count, place.name).reshape(place.shape)
                    continue
            except InvalidArgument as error:
                raise BadPlace(str(error)) from None
            if count * dtype.itemsize != place.nbytes:
                raise BadPlace(f"{place}: its shape does not fit its size")
            array = room.view(dtype).reshape(place.shape)
            tensors[place.name] = array.copy() if copy else array
        return tensors

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
