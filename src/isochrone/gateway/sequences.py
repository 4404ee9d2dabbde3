"""Where sequences live: on the worker that took their first request, whatever the policy would choose now. Pure.

A sequence's state is on one worker, so a policy that goes by load must not be asked twice. A sequence that is not known
here gets its worker by rendezvous hashing (Thaler and Ravishankar, 1998): all processes and gateways that see the same
workers agree, so its requests may come through any of them. Memory is bounded: the sequences used least lately are
forgotten, and found again by the same hash while the fleet stays as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from isochrone.gateway.policies.hashing import hashes
from isochrone.gateway.replicas import Replica

if TYPE_CHECKING:
    from isochrone.gateway.replica_set import ReplicaSet

_PURPOSE = b"sequence"
#: Sequences of one model that are known at once; one costs some 300 bytes.
_MOST = 65_536


class Home:
    """One sequence: its worker, and the version it began with."""

    __slots__ = ("replica", "replica_set", "uses")

    def __init__(self, replica_set: ReplicaSet, replica: Replica) -> None:
        self.replica_set = replica_set
        self.replica = replica
        self.uses = 1


class Sequences:
    """The sequences of one model."""

    __slots__ = ("_addresses", "_eligible", "_homes")

    def __init__(self) -> None:
        self._homes: OrderedDict[bytes, Home] = OrderedDict()
        #: Hashes of the addresses of the last eligible set asked for; a balancer makes a new list when it changes.
        self._eligible: Sequence[Replica] = ()
        self._addresses = np.zeros(0, np.uint64)

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, key: bytes, replica_set: ReplicaSet) -> Home | None:
        """Where a request of the sequence goes; None: nobody is eligible. A home that is lost is given up: what was
        there is gone, and whoever gets the sequence now says so."""
        home = self._homes.get(key)
        if home is not None:
            replica = home.replica
            if replica.endpoint.healthy and home.replica_set.replicas.get(replica.endpoint.address) is replica:
                home.uses += 1
                self._homes.move_to_end(key)
                return home
        eligible = replica_set.balancer.eligible
        if not eligible:
            return None
        return self.settle(key, replica_set, self._hashed(key, eligible))

    def settle(self, key: bytes, replica_set: ReplicaSet, replica: Replica) -> Home:
        """The sequence lives there from now on."""
        home = self._homes[key] = Home(replica_set, replica)
        self._homes.move_to_end(key)
        if len(self._homes) > _MOST:
            self._homes.popitem(last=False)
        return home

    def may_move(self, key: bytes) -> bool:
        """Whether its first request is still all there is of it."""
        home = self._homes.get(key)
        return home is None or home.uses == 1

    def _hashed(self, key: bytes, eligible: Sequence[Replica]) -> Replica:
        if eligible is not self._eligible:
            self._eligible = eligible
            seeds = [hashes.of_address(replica.endpoint.address, _PURPOSE) for replica in eligible]
            self._addresses = np.array(seeds, np.uint64)
        mixed = hashes.points((self._addresses ^ np.uint64(hashes.of_bytes(key))).tolist(), 1)
        return eligible[int(mixed.argmax())]
