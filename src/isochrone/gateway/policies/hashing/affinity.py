"""The base class of policies that place requests by a key: hashing, requests without a key, rebuilds on a change."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.hashing.hashes import of_bytes
from isochrone.gateway.policies.toolkit.sampling import less_busy, one
from isochrone.gateway.replicas import Replica


class AffinityPolicy(Policy):
    """Places a request without a key on the less busy of two random replicas. Subclasses build and search a table."""

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        before = {replica.endpoint.address: replica for replica in self.replicas}
        super().replicas_changed(replicas)
        if before != {replica.endpoint.address: replica for replica in replicas}:
            # Ordered by address: gateways that discover workers in different orders must agree.
            self._build(sorted(replicas, key=lambda replica: replica.endpoint.address))

    def choose(self, demand: Demand, now: int) -> Replica:
        if not demand.key:
            return less_busy(self._random, self.replicas, demand.avoid)
        if demand.avoid and len(self.replicas) <= len(demand.avoid):
            # Perhaps every replica is to be avoided.
            return one(self._random, self.replicas, demand.avoid)
        return self._look_up(of_bytes(demand.key), demand.avoid)

    def _build(self, replicas: Sequence[Replica]) -> None:
        raise NotImplementedError

    def _look_up(self, key: int, avoid: Sequence[Replica]) -> Replica:
        """The key's replica. At least one replica is not in ``avoid``."""
        raise NotImplementedError
