"""round_robin: all replicas in turn, whatever their load. The baseline.

Source: NGINX's default method (https://nginx.org/en/docs/http/load_balancing.html), without its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.replicas import Replica


class RoundRobin(Policy):
    name = "round_robin"

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        # A random start: gateways that start together must not move in step.
        self._next = random.randrange(1 << 16)

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        super().replicas_changed(replicas)
        self._next %= len(replicas) or 1

    def choose(self, demand: Demand, now: int) -> Replica:
        replicas, slot = self.replicas, self._next
        if slot >= len(replicas):
            slot = 0
        replica = replicas[slot]
        if replica in demand.avoid:
            for _ in range(min(len(replicas) - 1, len(demand.avoid))):
                slot = slot + 1 if slot + 1 < len(replicas) else 0
                if replicas[slot] not in demand.avoid:
                    replica = replicas[slot]
                    break
        self._next = slot + 1
        return replica
