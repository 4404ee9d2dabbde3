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


class BodyPool:
    """Blocks by size: powers of two. What is untouched of a block takes no memory."""

    __slots__ = ("_free", "_is_scarce", "_lent", "_reckoned", "_returned", "limit")

    def __init__(self, limit: int, is_scarce: Callable[[], bool]) -> None:
        #: Bytes of free blocks that are kept; larger blocks are not kept at all.
        self.limit = limit
        #: Whether memory is too scarce to keep any.
        self._is_scarce = is_scarce
        #: Free blocks by the power of their size; the last one freed is the next one used, while caches have it.
        self._free: list[list[memoryview]] = [[] for _ in range(limit.bit_length())]
        #: The blocks in use by their weak references' ids.
        self._lent: dict[int, tuple[weakref.ref[Any], memoryview]] = {}
        #: ``kept``, unless two threads changed it at once; counted anew before a block is let go for its sake.
        self._reckoned = 0
        self._returned = self._take_back

    @property
    def kept(self) -> int:
        """Bytes of free blocks."""
        return sum(len(blocks) << power for power, blocks in enumerate(self._free))

    def take(self, size: int, beyond: int = 0) -> memoryview:
        """A buffer of ``size + beyond`` bytes with any contents; ``beyond`` is at most ``BEYOND``.

        Its pages take memory as bytes arrive, or did already.
        """
        power = (size - 1).bit_length()
        if size < SMALLEST or power >= len(self._free):
            # Not a bytearray, which would use memory for the announced size.
            return np.empty(size + beyond, np.uint8).data
        try:
            block = self._free[power].pop()
            self._reckoned -= 1 << power
        except IndexError:
            block = np.empty((1 << power) + BEYOND, np.uint8).data
        # An array of a memoryview: a view of an array of an array could refer to the inner one.
        body = np.frombuffer(block, np.uint8, size + beyond)
        reference = weakref.ref(body, self._returned)
        self._lent[id(reference)] = (reference, block)
        return body.data

    def _take_back(self, reference: weakref.ref[Any]) -> None:
        block = self._lent.pop(id(reference))[1]
        size = len(block) - BEYOND
        if self._reckoned + size > self.limit:
            self._reckoned = self.kept
        if self._reckoned + size <= self.limit and not self._is_scarce():
            self._reckoned += size
            self._free[size.bit_length() - 1].append(block)

    def clear(self) -> None:
        """Return the free blocks."""
        for blocks in self._free:
            blocks.clear()
        self._reckoned = 0
