"""random: every replica with equal probability. The baseline that needs no state.

Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001, the case d = 1.
"""

from __future__ import annotations

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.toolkit.sampling import one
from isochrone.gateway.replicas import Replica


class RandomChoice(Policy):
    name = "random"

    def choose(self, demand: Demand, now: int) -> Replica:
        return one(self._random, self.replicas, demand.avoid)
