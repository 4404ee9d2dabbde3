"""consistent_hash: a key's requests go to one worker, unless that worker has more than its share of requests.

Each worker owns many points on a ring. A key belongs to the next point clockwise; it moves on from a worker that has
``load_factor`` times the mean requests in flight. Adding or removing one of n workers moves about 1/n of the keys.
Sources: Karger et al., "Consistent Hashing and Random Trees", STOC 1997; Mirrokni, Thorup and Zadimoghaddam,
"Consistent Hashing with Bounded Loads", SODA 2018 (arXiv:1608.01350).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import ceil
from random import Random

import numpy as np

from isochrone.gateway.policies.hashing import hashes
from isochrone.gateway.policies.hashing.affinity import AffinityPolicy
from isochrone.gateway.policies.toolkit.options import number, whole
from isochrone.gateway.policies.toolkit.sampling import one
from isochrone.gateway.replicas import Replica

_PURPOSE = b"ring"


class ConsistentHash(AffinityPolicy):
    """``points``: per worker; more points spread keys more evenly (a share deviates by about 1/√points) and cost
    memory. ``load_factor``: the limit of a worker's load as a multiple of the mean; a large value moves no key."""

    name = "consistent_hash"

    def __init__(self, random: Random, *, points: int = 128, load_factor: float = 1.25) -> None:
        super().__init__(random)
        self._points = whole(self.name, "points", points, 1, 4096)
        self._load_factor = number(self.name, "load_factor", load_factor, 1)
        self._ring: list[int] = []
        #: By point of the ring: the index of its worker in ``_by_address``.
        self._owners: list[int] = []
        self._by_address: Sequence[Replica] = ()
        #: Requests in flight per replica as last counted, and their sum.
        self._seen: dict[Replica, int] = {}
        self._in_flight = 0
        #: Choices that moved on from a worker that had its share already.
        self.moved_on = 0

    def sent(self, replica: Replica, now: int) -> None:
        self._count(replica)

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        self._count(replica)

    def dropped(self, replica: Replica, sent_at: int, now: int, *, unneeded: bool = False) -> None:
        self._count(replica)

    def counts(self) -> Mapping[str, int]:
        return {"moved_on": self.moved_on}

    def capacity(self) -> int:
        """The most requests in flight a replica may have, including the request to be placed."""
        return ceil(self._load_factor * (self._in_flight + 1) / len(self.replicas))

    def _count(self, replica: Replica) -> None:
        seen = self._seen.get(replica)
        if seen is not None:
            self._in_flight += replica.in_flight - seen
            self._seen[replica] = replica.in_flight

    def _build(self, replicas: Sequence[Replica]) -> None:
        self._seen = {replica: replica.in_flight for replica in replicas}
        self._in_flight = sum(self._seen.values())
        self._by_address = replicas
        seeds = [hashes.of_address(replica.endpoint.address, _PURPOSE) for replica in replicas]
        ring = hashes.points(seeds, self._points).ravel()
        order = np.argsort(ring)
        # Lists: bisect over ints takes half a microsecond, numpy's search of one key several.
        self._ring = ring[order].tolist()
        self._owners = (order // self._points).tolist()

    def _look_up(self, key: int, avoid: Sequence[Replica]) -> Replica:
        owners, replicas = self._owners, self._by_address
        length = len(owners)
        place = bisect_left(self._ring, key)
        capacity = self.capacity()
        spare = None
        # Not every worker can be above the mean, so this ends early: after about 1/(load_factor - 1)² points.
        for step in range(place, place + length):
            owner = replicas[owners[step if step < length else step - length]]
            if owner in avoid:
                continue
            if owner.in_flight < capacity:
                if spare is not None:
                    self.moved_on += 1
                return owner
            if spare is None:
                spare = owner
        # Every replica that is not avoided has its share: take the key's own.
        return spare or one(self._random, self.replicas, avoid)
