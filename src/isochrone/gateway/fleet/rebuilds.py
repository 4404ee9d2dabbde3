"""Models that are behind what is known of members and commitments, and how they catch up: a little in each turn.

A change marks models here and does no more. A model whose next request comes first catches up before that by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

from isochrone.errors import NotFound
from isochrone.gateway.fleet.replica_set import ReplicaSet

#: Replicas looked at in one turn of the loop: some 1 µs each.
_PER_TURN = 256
#: A new model takes as long as so many of them.
_MAKING = 256


class Rebuilt(Protocol):
    """What a model is here."""

    replica_sets: dict[tuple[str, bytes], ReplicaSet]

    def outdate(self) -> None: ...

    def rebuild(self, now: int) -> None: ...


class Rebuilds:
    """The models of one gateway that are to be rebuilt, or made."""

    def __init__(self, clock: Callable[[], int], make: Callable[[str], Rebuilt]) -> None:
        """``make`` raises ``NotFound`` for a model beyond those that there may be."""
        self._clock = clock
        self._make = make
        #: Models whose ``rebuild`` is due.
        self.outdated: dict[Rebuilt, None] = {}
        #: Models that depend on what is known of others: they run where all their stages are.
        self._ensembles: dict[Rebuilt, None] = {}
        #: Committed ones that are still to be made.
        self.unmade: dict[str, None] = {}
        #: Called when something becomes due.
        self.on_due: Callable[[], None] | None = None

    @property
    def is_due(self) -> bool:
        return bool(self.outdated or self.unmade)

    def add(self, served: Rebuilt) -> None:
        """A model's ``rebuild`` is due."""
        self.outdated[served] = None
        self._tell()

    def done(self, served: Rebuilt) -> None:
        """A model has been rebuilt."""
        self.outdated.pop(served, None)

    def add_ensemble(self, served: Rebuilt) -> None:
        """From now on, a change of any model may concern this one."""
        self._ensembles[served] = None

    def outdate_ensembles(self) -> None:
        """What they depend on are entries of other models too."""
        for served in self._ensembles:
            served.outdate()

    def make(self, names: list[str]) -> None:
        """These models are to be made before their first request."""
        self.unmade.update(dict.fromkeys(names))
        if self.unmade:
            self._tell()

    def do_not_make(self, name: str) -> None:
        self.unmade.pop(name, None)

    def _tell(self) -> None:
        if self.on_due is not None:
            self.on_due()

    def steps(self) -> Generator[None, None, None]:
        """Do what is due now; yields between two turns of the loop."""
        looked = 0
        for _ in range(len(self.outdated) + len(self.unmade)):
            if not self.is_due:
                return
            if self.outdated:
                served = next(iter(self.outdated))
                served.rebuild(self._clock())
            else:
                name = next(iter(self.unmade))
                del self.unmade[name]
                try:
                    served = self._make(name)
                except NotFound:
                    continue  # more than there may be
                looked += _MAKING
            looked += 16 + sum(len(each.replicas) for each in served.replica_sets.values())
            if looked >= _PER_TURN:
                looked = 0
                yield
