"""The memory accounting of one HTTP/1.1 connection.

HTTP/1.1 has no windows: the bytes of an answer wait in the transport, and answers that are ready before those of
earlier requests wait in their exchanges. This module only counts; ``Http1Connection`` acts.
"""

from __future__ import annotations

from isochrone.wire.bodies.budget import SMALL, MemoryBudget, Share

#: Requests that run concurrently before the first answer shows how large answers are.
_UNKNOWN_PIPELINED = 8
#: Limit on the bytes of answers to pipelined requests, estimated from the largest answer so far.
_PIPELINED_BYTES = 8 * 1024 * 1024


class Http1Memory:
    """One connection's memory account."""

    __slots__ = ("_largest", "_unsent", "arriving", "share", "waiting")

    def __init__(self, budget: MemoryBudget) -> None:
        self.share = Share(budget)
        #: Bytes reserved for the body that is being received.
        self.arriving = 0
        #: Bytes of answers that wait for those of earlier requests.
        self.waiting = 0
        #: Bytes of answers in the transport and in ``waiting``, as of the last ``account``.
        self._unsent = 0
        self._largest = -1

    def reserve(self, size: int) -> bool:
        """Reserve ``size`` bytes for the body that is being received; False: there is no memory."""
        lacking = size - self.arriving
        if size <= SMALL or lacking <= 0:
            return True
        if not self.share.reserve(lacking):
            return False
        self.arriving = size
        return True

    def take_arriving(self) -> int:
        """Pass the reservation of the complete body to its request; returns its size."""
        size, self.arriving = self.arriving, 0
        return size

    def drop_arriving(self) -> None:
        self.share.give_back(self.take_arriving())

    def note_answer_size(self, size: int) -> None:
        if size > self._largest:
            self._largest = size

    def concurrency(self, limit: int) -> int:
        """The number of requests that may run concurrently, so that the size of their answers stays bounded."""
        if self._largest < 0:
            return min(limit, _UNKNOWN_PIPELINED)
        return max(1, min(limit, _PIPELINED_BYTES // (self._largest or 1)))

    def account(self, buffered: int) -> None:
        """Update the share to the unsent bytes; ``buffered`` is the size of the transport's buffer."""
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
        """Whether answers were unsent at the last ``account``."""
        return self._unsent > 0
