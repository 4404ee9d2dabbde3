"""What every policy is: an object that chooses one of the eligible replicas. No I/O, no clock, little allocation.

One policy object serves one model on one gateway. The shell, gateway or simulator, keeps the replicas' own figures and
tells the policy what happens: ``members`` when the eligible set changes, ``sent`` and ``ended`` around each request,
``reported`` when a worker's own word came. Time is handed in, in ns of a clock that never goes back; randomness comes
from the ``Random`` it was made with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import ClassVar

from isochrone.gateway.replicas import Replica

NEVER = 1 << 62


class Demand:
    """What a policy may know of a request."""

    __slots__ = ("avoid", "deadline", "key", "priority", "rows", "starts_sequence")

    def __init__(
        self,
        key: bytes = b"",
        deadline: int = NEVER,
        rows: int = 1,
        priority: int = 0,
        avoid: tuple[Replica, ...] = (),
        starts_sequence: bool = False,
    ) -> None:
        #: What affinity goes by: agent, sequence or a header's value; empty: none.
        self.key = key
        #: Instant by which the answer must be there.
        self.deadline = deadline
        self.rows = rows
        self.priority = priority
        #: Tried already: chosen only when there is nobody else.
        self.avoid = avoid
        #: The first request of a sequence, by its own word.
        self.starts_sequence = starts_sequence


class Policy:
    """Subclasses override ``choose``, and of the rest what they need."""

    name: ClassVar[str]
    #: ``probes`` may name replicas now. The shell calls it after a choice only then: most policies never probe.
    wants_probes = False

    def __init__(self, random: Random) -> None:
        self._random = random
        self.replicas: Sequence[Replica] = ()

    def members(self, replicas: Sequence[Replica]) -> None:
        """The eligible replicas are these from now on; may be empty."""
        self.replicas = replicas

    def choose(self, demand: Demand, now: int) -> Replica:
        """One of the members, of which there is at least one; not one of ``demand.avoid`` while there is another."""
        raise NotImplementedError

    def sent(self, replica: Replica, now: int) -> None:
        """A request was sent to it; its own figures are up to date."""

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        """A request ended."""

    def dropped(self, replica: Replica, sent_at: int, now: int, *, unneeded: bool = False) -> None:
        """An attempt ended without evidence about the replica: it was given up or rejected.

        ``unneeded``: its answer was not needed: another attempt's came first, or it was a shadow copy.
        """

    def reported(self, replica: Replica, now: int) -> None:
        """Its own word came."""

    def probes(self, now: int) -> Sequence[Replica]:
        """Replicas whose load report is wanted now; called after each choice. The shell may leave some out."""
        return ()

    def counts(self) -> Mapping[str, int]:
        """Decisions by kind, for the metrics page. They never go down."""
        return {}

    def other_than(self, avoid: Sequence[Replica]) -> Replica:
        """A member at random that was not tried yet, if there is one."""
        left = [replica for replica in self.replicas if replica not in avoid]
        return self._random.choice(left or self.replicas)
