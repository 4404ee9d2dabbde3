"""What policies that go by a key share: the key's hash, the way out without a key, and rebuilding only on a change."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.hashing.hashes import of_bytes
from isochrone.gateway.policies.toolkit.sampling import less_busy, one
from isochrone.gateway.replicas import Replica


class AffinityPolicy(Policy):
    """A request without a key goes to the less busy of two at random. Subclasses build and look up."""

    def members(self, replicas: Sequence[Replica]) -> None:
        before = {replica.endpoint.address: replica for replica in self.replicas}
        super().members(replicas)
        if before != {replica.endpoint.address: replica for replica in replicas}:
            # In the order of addresses: gateways that learn of workers in different orders must still agree.
            self._build(sorted(replicas, key=lambda replica: replica.endpoint.address))

    def choose(self, demand: Demand, now: int) -> Replica:
        if not demand.key:
            return less_busy(self._random, self.replicas, demand.avoid)
        if demand.avoid and len(self.replicas) <= len(demand.avoid):
            # Perhaps nobody is left to go on to.
            return one(self._random, self.replicas, demand.avoid)
        return self._look_up(of_bytes(demand.key), demand.avoid)

    def _build(self, replicas: Sequence[Replica]) -> None:
        raise NotImplementedError

    def _look_up(self, key: int, avoid: Sequence[Replica]) -> Replica:
        """The key's member; there is one that is not among ``avoid``."""
        raise NotImplementedError
