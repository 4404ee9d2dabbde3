"""Memory of large bodies, used again for the next ones.

glibc returns the memory of bodies that are freed together, as those of a batch are, to the operating system, and the
pages of every new body are faulted in and cleared again: 70 page faults, and more than half of the time, for 300 kB. A
``BodyPool`` keeps the blocks of freed bodies. A block is free when nobody refers to any view of its body: views of all
kinds (memoryviews and their slices, numpy and torch tensors) keep the array alive that the body was lent as, and a weak
reference notices its end. The last view may end on any thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

#: Smallest body in memory of the pool, as a power of two; the heap does well below it.
_SMALLEST_POWER = 16
SMALLEST = 1 << _SMALLEST_POWER
#: Bytes that may be received behind a body with the same read: the heads of the next one, so that its bytes are not
#: received elsewhere.
BEYOND = 256


#: Returned blocks after which all blocks are counted, less one.
_COUNT_MASK = 255


class BodyPool:
    """Blocks by size: powers of two. What is untouched of a block takes no memory.

    There is no lock: a body may end inside any method, and in a copy of the process that a model has forked.
    """

    __slots__ = ("_free", "_is_scarce", "_lent", "_returned", "_returns", "_spare", "limit")

    def __init__(self, limit: int, is_scarce: Callable[[], bool]) -> None:
        #: Bytes that the pool holds beside bodies in use; larger blocks are not kept at all.
        self.limit = limit
        #: Whether memory is too scarce to keep any.
        self._is_scarce = is_scarce
        #: Free blocks by the power of their size, with the bytes that were touched; the last one freed is the next one
        #: used, while caches have it.
        self._free: list[list[tuple[memoryview, int]]] = [[] for _ in range(limit.bit_length())]
        #: The blocks in use by their weak references' ids, with the bytes that were touched, and those of them that are
        #: not the body's: an earlier body was larger.
        self._lent: dict[int, tuple[weakref.ref[Any], memoryview, int, int]] = {}
        #: ``spare``, unless two threads changed it at once; counted anew now and then.
        self._spare = 0
        self._returns = 0
        self._returned = self._take_back

    @property
    def kept(self) -> int:
        """Bytes of free blocks."""
        return sum(len(blocks) << power for power, blocks in enumerate(self._free))

    @property
    def spare(self) -> int:
        """Bytes that the pool holds beside bodies in use: free blocks, and what is touched of others and not used."""
        # A list: other threads change it.
        return self.kept + sum([unused for _, _, _, unused in list(self._lent.values())])

    def take(self, size: int, beyond: int = 0) -> memoryview:
        """A buffer of ``size + beyond`` bytes with any contents; ``beyond`` is at most ``BEYOND``.

        Its pages take memory as bytes arrive, or did already.
        """
        power = (size - 1).bit_length()
        if size < SMALLEST or power >= len(self._free):
            # Not a bytearray, which would use memory for the announced size.
            return np.empty(size + beyond, np.uint8).data
        unused = 0
        try:
            block, touched = self._free[power].pop()
            if touched > size:
                unused = touched - size
            else:
                touched = size
            self._spare += unused - (1 << power)
        except IndexError:
            block, touched = np.empty((1 << power) + BEYOND, np.uint8).data, size
        # An array of a memoryview: a view of an array of an array could refer to the inner one.
        body = np.frombuffer(block, np.uint8, size + beyond)
        reference = weakref.ref(body, self._returned)
        self._lent[id(reference)] = (reference, block, touched, unused)
        return body.data

    def _take_back(self, reference: weakref.ref[Any]) -> None:
        _, block, touched, unused = self._lent.pop(id(reference))
        self._spare -= unused
        if self._is_scarce():
            return
        size = len(block) - BEYOND
        free, freed = self._free[size.bit_length() - 1], (block, touched)
        self._returns += 1
        if not self._returns & _COUNT_MASK:
            self._spare = self.spare
        # Nothing is called between these: no other body ends there.
        if self._spare + size <= self.limit:
            self._spare += size
            free.append(freed)

    def clear(self) -> None:
        """Return the free blocks."""
        for power, blocks in enumerate(self._free):
            self._spare -= len(blocks) << power
            blocks.clear()
