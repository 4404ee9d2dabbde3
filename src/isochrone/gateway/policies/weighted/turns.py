"""Stride scheduling: turns in proportion to weights. A replica's next turn is 1/weight after its last one.

Source: Waldspurger and Weihl, "Stride Scheduling: Deterministic Proportional-Share Resource Management", MIT 1995;
Envoy's and gRPC's weighted round robin use the same idea. It is smoother than a random draw by weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.toolkit.scores import ScoreBoard
from isochrone.gateway.replicas import Replica


class WeightedTurns(Policy):
    """Chooses the replica whose turn is next. Subclasses set the weights."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._slots: dict[Replica, int] = {}
        self._board = ScoreBoard()
        self._strides: list[float] = []
        self._initial_weight = 1.0

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        slots, strides, turns = self._slots, self._strides, self._board.values
        begin = float(turns[self._board.lowest()]) if len(turns) else 0.0
        stride = 1 / self._initial_weight
        kept = [slots.get(replica) for replica in replicas]
        self._strides = [stride if slot is None else strides[slot] for slot in kept]
        # Relative to the replica whose turn is next, so that the numbers stay small. New replicas start at a random
        # point within one stride: gateways that start together must not move in step.
        self._board = ScoreBoard(
            [self._random.random() * stride if slot is None else float(turns[slot]) - begin for slot in kept]
        )
        self._slots = {replica: slot for slot, replica in enumerate(replicas)}
        super().replicas_changed(replicas)

    def choose(self, demand: Demand, now: int) -> Replica:
        board = self._board
        if demand.avoid:
            slots = self._slots
            slot = board.lowest_but([slots[replica] for replica in demand.avoid if replica in slots])
            if slot < 0:
                return self.other_than(demand.avoid)
        else:
            slot = board.lowest()
        # At the choice, not when the request is sent: a replica in slow start that is skipped has had its turn.
        board.values[slot] += self._strides[slot]
        return self.replicas[slot]

    def _set_weight(self, replica: Replica, weight: float) -> None:
        """Set a replica's weight. It applies from its next turn on."""
        slot = self._slots.get(replica)
        if slot is not None:
            self._strides[slot] = 1 / weight

    def weight(self, replica: Replica) -> float:
        """The replica's share of turns relative to the others."""
        return 1 / self._strides[self._slots[replica]]
