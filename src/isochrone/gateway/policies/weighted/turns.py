"""Turns in proportion to weights: each member's next turn lies 1/weight after its last, and the nearest one is taken.

Source: Waldspurger and Weihl, "Stride Scheduling: Deterministic Proportional-Share Resource Management", MIT 1995; the
same idea is in Envoy's and gRPC's weighted round robin. Smoother than a draw by weight: no runs of luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.toolkit.scores import ScoreBoard
from isochrone.gateway.replicas import Replica


class WeightedTurns(Policy):
    """Subclasses call ``_set_weight``."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._slots: dict[Replica, int] = {}
        self._board = ScoreBoard()
        self._strides: list[float] = []
        self._weight_of_newcomers = 1.0

    def members(self, replicas: Sequence[Replica]) -> None:
        slots, strides, turns = self._slots, self._strides, self._board.values
        begin = float(turns[self._board.lowest()]) if len(turns) else 0.0
        stride = 1 / self._weight_of_newcomers
        kept = [slots.get(replica) for replica in replicas]
        self._strides = [stride if slot is None else strides[slot] for slot in kept]
        # Counted from the one whose turn it is, so that the numbers stay small. Newcomers begin somewhere within one
        # stride: gateways that start together must not walk in step.
        self._board = ScoreBoard(
            [self._random.random() * stride if slot is None else float(turns[slot]) - begin for slot in kept]
        )
        self._slots = {replica: slot for slot, replica in enumerate(replicas)}
        super().members(replicas)

    def choose(self, demand: Demand, now: int) -> Replica:
        board = self._board
        if demand.avoid:
            slots = self._slots
            slot = board.lowest_but([slots[replica] for replica in demand.avoid if replica in slots])
            if slot < 0:
                return self.other_than(demand.avoid)
        else:
            slot = board.lowest()
        # At the choice, not when it is sent: a newcomer whose turn is passed on has had its turn.
        board.values[slot] += self._strides[slot]
        return self.replicas[slot]

    def _set_weight(self, replica: Replica, weight: float) -> None:
        """What it has to wait for its next turn shrinks or grows with the weight, from now on."""
        slot = self._slots.get(replica)
        if slot is not None:
            self._strides[slot] = 1 / weight

    def weight(self, replica: Replica) -> float:
        """Its share relative to others."""
        return 1 / self._strides[self._slots[replica]]
