"""Tensors in a row of bytes: where each lies, and how they are written and read.

The bytes are a block of shared memory or the payload of a message. A reader trusts no place: the other side may be the
process of a model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.binary import decode_bytes, encode_bytes
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME, element_count, name_of

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors

    Bytes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]

_ALIGNMENT = 64  # a cache line, and more than any vector instruction needs
_PADDING = bytes(_ALIGNMENT)
_OBJECT = np.dtype(np.object_)


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One tensor's place in a row of bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class BadPlace(Exception):
    """The other side described a tensor that is not inside its bytes."""


class Packing:
    """Tensors on their way into a row of bytes: the places are known before anything is copied."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: list[tuple[int, Any]] = []
        self.size = 0

    def add(self, tensors: Tensors) -> list[Place]:
        return [self._add(name, array) for name, array in tensors.items()]

    def _add(self, name: str, array: Tensor) -> Place:
        part: Any = array
        if array.dtype.kind in "OSU":
            part = np.frombuffer(encode_bytes(array), np.uint8)
        place = Place(name, name_of(array.dtype), array.shape, self.size, part.nbytes)
        self._parts.append((self.size, part))
        self.size += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT
        return place

    def add_alike(self, tensors: Tensors, layout: Iterable[tuple[str, Any, tuple[int, ...]]]) -> bool:
        """Adds tensors whose places are known: they have these names, types (none of strings) and shapes; False: they
        have not."""
        parts = []
        size = self.size
        for name, dtype, shape in layout:
            array = tensors.get(name)
            if array is None or array.dtype != dtype or array.shape != shape:
                return False
            parts.append((size, array))
            size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        if len(parts) != len(tensors):
            return False
        self._parts += parts
        self.size = size
        return True

    def write(self, room: Bytes) -> None:
        """Copies the tensors to the beginning of ``room``, which has ``size`` bytes or more."""
        for offset, array in self._parts:
            room[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array

    def joined(self) -> bytes:
        """A copy of the tensors, one after the other. For small ones: views would take longer than the copies."""
        pieces = []
        for _, array in self._parts:
            data = array.tobytes()
            pieces.append(data)
            padding = -len(data) % _ALIGNMENT
            if padding:
                pieces.append(_PADDING[:padding])
        return b"".join(pieces)

    def parts(self) -> list[Any]:
        """The tensors as buffers, to be sent one after the other; views where possible."""
        buffers: list[Any] = []
        for _, array in self._parts:
            contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            buffers.append(contiguous.reshape(-1).view(np.uint8).data)
            padding = -array.nbytes % _ALIGNMENT
            if padding:
                buffers.append(_PADDING[:padding])
        return buffers


def read_places(data: Bytes, places: Iterable[Place], *, copy: bool) -> Tensors:
    """The tensors at ``places``; without ``copy`` they are views of ``data``."""
    tensors: Tensors = {}
    size = data.nbytes
    for place in places:
        dtype = NUMPY_BY_NAME.get(place.datatype)
        offset, nbytes, shape = place.offset, place.nbytes, place.shape
        if dtype is None or not 0 <= offset <= offset + nbytes <= size:
            raise BadPlace(f"{place} in a block of {size} bytes")
        try:
            count = element_count(shape, place.name)
            if dtype == _OBJECT:
                room = data[offset : offset + nbytes]
                tensors[place.name] = decode_bytes(room.data, count, place.name).reshape(shape)
                continue
        except InvalidArgument as error:
            raise BadPlace(str(error)) from None
        if count * dtype.itemsize != nbytes:
            raise BadPlace(f"{place}: its shape does not fit its size")
        array: Tensor = np.ndarray(shape, dtype, data, offset)
        tensors[place.name] = array.copy() if copy else array
    return tensors
