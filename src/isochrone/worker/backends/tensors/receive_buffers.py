"""Writable arrays for libraries that have no read-only ones, such as torch, from the read-only inputs of a request.

A model that writes to its input may overwrite the buffer that the request was received into, and nothing else: outputs
that a cache keeps reach a model as read-only arrays, too, and are copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor

_BRAIN = np.dtype(ml_dtypes.bfloat16)
#: A copy of so few bytes is faster than a second view of read-only memory.
_COPIED_BYTES = 16_384


def writable(array: Tensor) -> Tensor:
    """An array of the same values to which a model may write: a view of a receive buffer, or a copy."""
    if array.flags.writeable:
        return array
    if array.nbytes <= _COPIED_BYTES or not _lies_in_a_buffer(array):
        return array.copy()
    return np.asarray(_WritableMemory(array)).view(array.dtype)


def _lies_in_a_buffer(array: Tensor) -> bool:
    """Whether a read-only array lies in a buffer that a request was received into: transports make views of those.

    Other read-only memory is somebody's: an array or ``bytes`` that a model or a cache keeps, or a file that is mapped.
    """
    while isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array.base, memoryview)


class _WritableMemory:
    """Presents the memory of a read-only array as writable, and keeps the array alive."""

    def __init__(self, array: Tensor) -> None:
        self._array = array
        plain = array.view(np.uint16) if array.dtype == _BRAIN else array
        interface = dict(plain.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
