"""One process's memory for its peers: what it has received and not yet consumed, queued and not yet sent.

Every connection of every listener has a ``Share`` of the same ``MemoryBudget``. A share may grow while it stays no
larger than what would be left free (dynamic thresholds: A. Choudhury, E. Hahne, "Dynamic queue length thresholds for
shared-memory packet switches", 1998). One busy connection can so hold half of the budget, two a third each, and a new
one always finds some: nobody has to be evicted.

Requests are refused, answers are not: a connection over its share takes no further request. What a request that was
taken makes of it is known when it is answered; so when such answers use up the process's memory, requests that have
none yet are refused as well. Pure bookkeeping; never touches a socket.
"""

from __future__ import annotations

#: Bodies and answers below this size are not counted: the number of streams bounds them, and the common request pays
#: nothing.
SMALL = 16 * 1024


class MemoryBudget:
    """The bytes of one process."""

    __slots__ = ("free", "limit", "lowest", "refused", "scarce")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: With less than this free, connections whose answers use the memory up get none that is not begun.
        self.scarce = limit >> 4
        #: Negative while answers that had to be kept exceed the limit.
        self.free = limit
        #: The least that was ever free.
        self.lowest = limit
        #: Requests refused for want of memory.
        self.refused = 0

    @property
    def held(self) -> int:
        return self.limit - self.free

    def is_overdrawn_by(self, unsent: int) -> bool:
        """Whether one connection's ``unsent`` bytes of answers leave hardly anything to the process: its requests that
        have no answer yet are refused.

        Bodies do not count: a connection has asked for their memory, and holds it within its share. A lone connection
        that sends none holds 15/16 of the budget then, which only answers to requests that came before them reach.
        """
        return self.free < self.scarce and unsent > max(self.free, 0)


#: For connections whose bytes somebody else accounts for: what a gateway sends to workers came from its callers.
UNACCOUNTED = MemoryBudget(1 << 62)


class Share:
    """One connection's part of the budget."""

    __slots__ = ("budget", "held")

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.held = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether the connection holds more than would be free for another: it takes no further request.

        One that holds nothing never does, however much others hold.
        """
        return self.held > max(self.budget.free, 0)

    def reserve(self, size: int) -> bool:
        """Takes ``size`` bytes for something received, unless that is more than the connection's fair part."""
        budget = self.budget
        if self.held + size > budget.free - size:
            budget.refused += 1
            return False
        self.add(size)
        return True

    def add(self, size: int) -> None:
        """Takes ``size`` bytes that cannot be refused: an answer's."""
        self.held += size
        budget = self.budget
        budget.free -= size
        if budget.free < budget.lowest:
            budget.lowest = budget.free

    def give_back(self, size: int) -> None:
        self.held -= size
        self.budget.free += size

    def close(self) -> None:
        """The connection is gone."""
        self.budget.free += self.held
        self.held = 0
