"""Scores of all replicas by slot, and a policy base class that chooses the lowest score.

An event updates the score of one replica, so a choice among 1,000 replicas is one minimum search in C. Small fleets
are kept in a list, large ones in a numpy array. A choice must never iterate over the replicas in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.replicas import Replica

#: Up to this size ``min`` of a list is faster than numpy, whose call overhead alone is most of a microsecond.
SMALL = 48
#: Added to a replica's score per turn, so that among equal scores the least recently used replica is chosen. 10**12
#: turns add up to one request in flight.
TURN = 1e-12
_EXCLUDED = float("inf")


class ScoreBoard:
    """One number per slot; ``values[slot] = score`` writes it."""

    __slots__ = ("values",)

    def __init__(self, scores: Sequence[float] = ()) -> None:
        self.values: list[float] | NDArray[np.float64] = (
            np.array(scores, dtype=np.float64) if len(scores) > SMALL else list(scores)
        )

    def lowest(self) -> int:
        """The slot with the lowest score. The board must not be empty."""
        values = self.values
        if isinstance(values, list):
            return values.index(min(values))
        return int(values.argmin())

    def lowest_but(self, slots: Iterable[int]) -> int:
        """The slot with the lowest score except these; -1: no other slot exists."""
        values = self.values
        kept = {slot: float(values[slot]) for slot in slots}
        for slot in kept:
            values[slot] = _EXCLUDED
        slot = self.lowest()
        left = -1 if values[slot] == _EXCLUDED else slot
        for slot, score in kept.items():
            values[slot] = score
        return left


class ScoredPolicy(Policy):
    """Chooses the replica with the lowest score. Subclasses define the score of a replica."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._slots: dict[Replica, int] = {}
        self._board = ScoreBoard()
        #: By slot: the turn in which the replica was last used.
        self._stamps: list[float] = []
        self._turn = 0.0
        self._next_look = 0

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        stamps, slots = self._stamps, self._slots
        # New replicas get random turns: gateways that start together must not all begin with the same worker.
        self._stamps = [
            stamps[slots[replica]] if replica in slots else self._turn + self._random.random() * TURN
            for replica in replicas
        ]
        super().replicas_changed(replicas)
        self._slots = {replica: slot for slot, replica in enumerate(replicas)}
        self._board = ScoreBoard([self._score(replica, 0) for replica in replicas])
        for slot, stamp in enumerate(self._stamps):
            self._board.values[slot] += stamp

    def choose(self, demand: Demand, now: int) -> Replica:
        # Recompute one score per choice, in rotation: a load report expires without an event.
        replicas, board = self.replicas, self._board
        slot = self._next_look if self._next_look < len(replicas) else 0
        self._next_look = slot + 1
        board.values[slot] = self._score(replicas[slot], now) + self._stamps[slot]
        if demand.avoid:
            slots = self._slots
            slot = board.lowest_but([slots[replica] for replica in demand.avoid if replica in slots])
            return replicas[slot] if slot >= 0 else self.other_than(demand.avoid)
        return replicas[board.lowest()]

    def sent(self, replica: Replica, now: int) -> None:
        slot = self._slots.get(replica)
        if slot is not None:
            self._turn += TURN
            self._stamps[slot] = self._turn
            self._board.values[slot] = self._score(replica, now) + self._turn

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        self._update(replica, now)

    def dropped(self, replica: Replica, sent_at: int, now: int, *, unneeded: bool = False) -> None:
        self._update(replica, now)

    def reported(self, replica: Replica, now: int) -> None:
        self._update(replica, now)

    def _update(self, replica: Replica, now: int) -> None:
        slot = self._slots.get(replica)
        if slot is not None:
            self._board.values[slot] = self._score(replica, now) + self._stamps[slot]

    def _score(self, replica: Replica, now: int) -> float:
        """Lower is better. The unit is the subclass's own: requests in flight, or seconds."""
        raise NotImplementedError
