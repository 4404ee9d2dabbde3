"""The memory budget of a process for its peers: bytes received and not yet consumed, queued and not yet sent.

Every connection of every listener has a ``Share`` of the same ``MemoryBudget``. A share may grow while it is not larger
than the memory that stays free (dynamic thresholds: A. Choudhury, E. Hahne, "Dynamic queue length thresholds for
shared-memory packet switches", 1998). So one busy connection can hold half of the budget, two a third each, and a new
connection always finds some memory: no connection has to be evicted.

Requests are rejected, answers are not: a connection over its share accepts no further request. The size of an answer is
known only when it is written; when answers use up the process's memory, requests without an answer are rejected as
well. This module only counts; it never touches a socket.
"""

from __future__ import annotations

from isochrone.wire.bodies.body_pool import BodyPool

#: Bodies and answers below this size are not counted: the number of streams bounds them, and small requests pay
#: nothing.
SMALL = 16 * 1024


#: Bytes of free memory of bodies that a process keeps for the next ones.
_MAX_KEPT = 64 * 1024 * 1024


class MemoryBudget:
    """The memory of one process."""

    __slots__ = ("_earlier_peak", "bodies", "free", "limit", "lowest", "rejected", "scarce")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: With less than this free, requests without an answer are rejected on connections with many unsent answers.
        self.scarce = limit >> 4
        #: Negative while answers exceed the limit.
        self.free = limit
        #: The least that was free since the last ``take_peak``, and the most that was held before it.
        self.lowest = limit
        self._earlier_peak = 0
        #: Requests rejected because there was no memory.
        self.rejected = 0
        #: Memory of bodies. Free blocks are within the limit too: there are none while memory is scarce.
        self.bodies = BodyPool(min(self.scarce, _MAX_KEPT), self.is_scarce)

    @property
    def held(self) -> int:
        return self.limit - self.free

    @property
    def peak(self) -> int:
        """The most that was ever held."""
        return max(self._earlier_peak, self.limit - self.lowest)

    def take_peak(self) -> int:
        """The most that was held since the last call."""
        taken = self.limit - self.lowest
        self._earlier_peak = max(self._earlier_peak, taken)
        self.lowest = self.free
        return taken

    def is_scarce(self) -> bool:
        return self.free < self.scarce

    def is_overdrawn_by(self, unsent: int) -> bool:
        """Whether memory is scarce and one connection's ``unsent`` bytes of answers exceed the free memory.

        The connection's requests without an answer are then rejected. Bodies do not count here: they were reserved
        within the connection's share. A single connection without bodies reaches this at 15/16 of the budget.
        """
        return self.is_scarce() and unsent > max(self.free, 0)


#: For client connections: the bytes that a gateway sends to workers are already counted for its callers.
UNACCOUNTED = MemoryBudget((1 << 62) - 1)


class Share:
    """One connection's share of the budget."""

    __slots__ = ("budget", "held")

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.held = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether the connection holds more than the free memory: it accepts no further request.

        Never true for a connection that holds nothing.
        """
        return self.held > max(self.budget.free, 0)

    def reserve(self, size: int) -> bool:
        """Reserve ``size`` bytes for received data; False: the connection would exceed its share."""
        budget = self.budget
        if self.held + size > budget.free - size:
            budget.rejected += 1
            return False
        self.add(size)
        return True

    def add(self, size: int) -> None:
        """Count ``size`` bytes that cannot be rejected: those of an answer."""
        self.held += size
        budget = self.budget
        budget.free -= size
        if budget.free < budget.lowest:
            budget.lowest = budget.free
        if budget.is_scarce():
            budget.bodies.clear()

    def give_back(self, size: int) -> None:
        self.held -= size
        self.budget.free += size

    def close(self) -> None:
        """Release everything: the connection is closed."""
        self.budget.free += self.held
        self.held = 0
