"""What one HTTP/1.1 connection holds of the process's memory.

Stands beside ``Http1Connection``, which says what happens; here it is only counted. HTTP/1.1 has no windows: the bytes
of an answer wait in the transport, and answers that are ready before their turn wait in their exchanges.
"""

from __future__ import annotations

from isochrone.wire.budget import SMALL, MemoryBudget, Share

#: Requests that run at once before the first answer shows how large answers are.
_UNKNOWN_PIPELINED = 8
#: Bytes of answers that pipelined requests may make wait, by the largest answer so far.
_PIPELINED_BYTES = 8 * 1024 * 1024


class Http1Memory:
    """One connection's account."""

    __slots__ = ("_largest", "_unsent", "arriving", "share", "waiting")

    def __init__(self, budget: MemoryBudget) -> None:
        self.share = Share(budget)
        #: Bytes reserved for the body that arrives now.
        self.arriving = 0
        #: Bytes of answers that are ready before their turn.
        self.waiting = 0
        #: Bytes of answers in the transport and in ``waiting``, as of the last ``account``.
        self._unsent = 0
        self._largest = -1

    def reserve(self, size: int) -> bool:
        """Takes memory for ``size`` bytes of the body that arrives; False: there is none."""
        lacking = size - self.arriving
        if size <= SMALL or lacking <= 0:
            return True
        if not self.share.reserve(lacking):
            return False
        self.arriving = size
        return True

    def take_arriving(self) -> int:
        """The body is whole: what it holds is its request's to give back."""
        size, self.arriving = self.arriving, 0
        return size

    def drop_arriving(self) -> None:
        self.share.give_back(self.take_arriving())

    def answered(self, size: int) -> None:
        if size > self._largest:
            self._largest = size

    def concurrency(self, limit: int) -> int:
        """Requests of this connection that may run at once: as many as have answers of bounded size together."""
        if self._largest < 0:
            return min(limit, _UNKNOWN_PIPELINED)
        return max(1, min(limit, _PIPELINED_BYTES // (self._largest or 1)))

    def account(self, buffered: int) -> None:
        """Holds what now waits to be sent; ``buffered`` is the transport's part."""
        unsent = buffered + self.waiting
        if unsent <= SMALL:
            unsent = 0
        if unsent > self._unsent:
            self.share.add(unsent - self._unsent)
        elif unsent < self._unsent:
            self.share.give_back(self._unsent - unsent)
        self._unsent = unsent

    @property
    def is_held(self) -> bool:
        """Whether answers were waiting at the last ``account``."""
        return self._unsent > 0
