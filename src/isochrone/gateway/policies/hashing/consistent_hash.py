"""Consistent hashing with bounded load: a key's requests go to one worker, unless that one has more than its share.

Each worker owns many points on a ring; a key belongs to the next point clockwise, and goes on from a worker that holds
``load_factor`` times the mean of requests in flight. Adding or removing one of n workers moves about 1/n of the keys.
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
    """``points``: per worker; more spread keys more evenly (the share of one deviates by about 1/√points) and cost
    memory. ``load_factor``: a worker's highest multiple of the mean; a large one keeps every key where it is."""

    name = "consistent_hash"

    def __init__(self, random: Random, *, points: int = 128, load_factor: float = 1.25) -> None:
        super().__init__(random)
        self._points = whole(self.name, "points", points, 1, 4096)
        self._load_factor = number(self.name, "load_factor", load_factor, 1)
        self._ring: list[int] = []
        #: Of each point of the ring: the place of its worker in the order of addresses.
        self._owners: list[int] = []
        self._by_address: Sequence[Replica] = ()
        #: What each member has in flight, as it was last seen, and the sum.
        self._seen: dict[Replica, int] = {}
        self._in_flight = 0
        #: Choices that left a worker for having its share already.
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
        """Requests in flight that a member may have, the one to be placed included."""
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
        # Lists: bisect in C over ints takes half a microsecond, numpy's search of one key several.
        self._ring = ring[order].tolist()
        self._owners = (order // self._points).tolist()

    def _look_up(self, key: int, avoid: Sequence[Replica]) -> Replica:
        owners, replicas = self._owners, self._by_address
        length = len(owners)
        place = bisect_left(self._ring, key)
        capacity = self.capacity()
        spare = None
        # Not everybody can be above the mean, so this ends early: after some 1/(load_factor - 1)² points.
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
        # Everybody but the avoided ones has its share already: then the key's own.
        return spare or one(self._random, self.replicas, avoid)
