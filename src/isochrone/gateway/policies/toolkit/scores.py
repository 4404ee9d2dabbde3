"""Scores of the members by slot, and the lowest of them: what policies that look at everybody stand on.

A score changes when something happens to its replica, not when a request comes, so that a choice among 1,000 costs one
search in C. A few members are kept in a list, many in an array. Must never be walked in Python for a choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.replicas import Replica

#: Up to here a list's own minimum is quicker than an array's, whose call alone costs most of a microsecond.
SMALL = 48
#: What one turn adds to a score. Equal scores then go to whoever was sent to longest ago: rotation, and no two
#: requests in a row to one of many idle workers. A million million turns add up to one request in flight.
TURN = 1e-12
_NOBODY = float("inf")


class ScoreBoard:
    """One number per slot; ``values[slot] = score`` writes it."""

    __slots__ = ("values",)

    def __init__(self, scores: Sequence[float] = ()) -> None:
        self.values: list[float] | NDArray[np.float64] = (
            np.array(scores, dtype=np.float64) if len(scores) > SMALL else list(scores)
        )

    def lowest(self) -> int:
        """The slot with the lowest score; there must be one."""
        values = self.values
        if isinstance(values, list):
            return values.index(min(values))
        return int(values.argmin())

    def lowest_but(self, slots: Iterable[int]) -> int:
        """The same, apart from these; -1 when nobody is left."""
        values = self.values
        kept = {slot: float(values[slot]) for slot in slots}
        for slot in kept:
            values[slot] = _NOBODY
        slot = self.lowest()
        left = -1 if values[slot] == _NOBODY else slot
        for slot, score in kept.items():
            values[slot] = score
        return left


class ScoredPolicy(Policy):
    """Takes the member with the lowest score. Subclasses say what the score of one replica is."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._slots: dict[Replica, int] = {}
        self._board = ScoreBoard()
        #: When each member was last sent to, in turns.
        self._stamps: list[float] = []
        self._turn = 0.0
        self._next_look = 0

    def members(self, replicas: Sequence[Replica]) -> None:
        stamps, slots = self._stamps, self._slots
        # Newcomers in random order: gateways that start together must not all begin with the same worker.
        self._stamps = [
            stamps[slots[replica]] if replica in slots else self._turn + self._random.random() * TURN
            for replica in replicas
        ]
        super().members(replicas)
        self._slots = {replica: slot for slot, replica in enumerate(replicas)}
        self._board = ScoreBoard([self._score(replica, 0) for replica in replicas])
        for slot, stamp in enumerate(self._stamps):
            self._board.values[slot] += stamp

    def choose(self, demand: Demand, now: int) -> Replica:
        # One member in turn is looked at again: news grows old, and a caller may leave, without anybody saying so.
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
        """The lower the better: requests in flight, or seconds."""
        raise NotImplementedError
