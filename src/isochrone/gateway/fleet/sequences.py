"""Where sequences live: on the worker that took their first request, whatever the policy would choose now. Pure.

A sequence's state is on one worker, and its requests may come through several gateways, which do not know of each
other. So its worker is found by rendezvous hashing over the replicas of its version (Thaler and Ravishankar, 1998),
which every gateway computes alike. What a gateway has placed it remembers, so that workers that join do not move a
sequence; memory is bounded, and the sequences used least lately are forgotten. A request counts as the first of its
sequence only if it says ``sequence_start``: one that is merely new to this gateway is never sent to another worker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from isochrone.gateway.placement.balancer import STANDING_BY
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.hashing import hashes
from isochrone.gateway.replicas import Replica

if TYPE_CHECKING:
    from isochrone.gateway.fleet.replica_set import ReplicaSet

_PURPOSE = b"sequence"
#: Sequences of one model that are known at once; one costs some 300 bytes.
_MOST = 65_536


class Home:
    """One sequence: its worker, and the version it began with."""

    __slots__ = ("only_started", "replica", "replica_set")

    def __init__(self, replica_set: ReplicaSet, replica: Replica, only_started: bool) -> None:
        self.replica_set = replica_set
        self.replica = replica
        #: Its first request is all that this gateway has placed of it.
        self.only_started = only_started

    @property
    def is_there(self) -> bool:
        """The worker still serves the version, and has not been replaced."""
        return self.replica_set.replicas.get(self.replica.endpoint.address) is self.replica


class Sequences:
    """The sequences of one model."""

    __slots__ = ("_hashes", "_hashes_of", "_homes", "_replicas")

    def __init__(self) -> None:
        self._homes: OrderedDict[bytes, Home] = OrderedDict()
        #: The replicas of the version last asked for, and the hashes of their addresses. A replica set makes a new
        #: mapping when they change.
        self._hashes_of: Mapping[str, Replica] = {}
        self._replicas: list[Replica] = []
        self._hashes = np.zeros(0, np.uint64)

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, demand: Demand, replica_set: ReplicaSet) -> Home | None:
        """Where a request of a sequence goes; None: no replica can take it."""
        home = self._homes.get(demand.key)
        if demand.starts_sequence:
            # An id that is used again stays where other gateways may remember it, if its worker takes new sequences.
            replica = replica_set.replicas.get(home.replica.endpoint.address) if home is not None else None
            if replica is None or not takes_sequences(replica, replica_set):
                replica = self._first(demand.key, replica_set, ())
            return None if replica is None else self._keep(demand.key, Home(replica_set, replica, True))
        if home is not None and home.is_there:
            self._homes.move_to_end(demand.key)
            if home.replica.endpoint.healthy:
                home.only_started = False
                return home
        # Begun through another gateway, or its worker is away.
        replica = self._first(demand.key, replica_set, ())
        if replica is None:
            return None
        found = Home(replica_set, replica, False)
        # A worker that is only away may come back with the sequence, so that one stays remembered.
        return found if home is not None and home.is_there else self._keep(demand.key, found)

    def next_home(self, key: bytes, replica_set: ReplicaSet, tried: Sequence[Replica], *, lost: bool) -> Replica | None:
        """Where a first request may go that its worker has not begun; None: nowhere. ``settle`` follows when it does.

        ``lost``: there was no answer. A worker that rejected it and still takes sequences is where other gateways
        will look for this one, so the caller gets the rejection.
        """
        home = self._homes.get(key)
        if home is None or not home.only_started:
            return None
        if not lost and takes_sequences(home.replica, replica_set):
            return None
        return self._first(key, replica_set, tried)

    def settle(self, key: bytes, replica_set: ReplicaSet, replica: Replica) -> None:
        """The first request of the sequence is sent there."""
        self._keep(key, Home(replica_set, replica, True))

    def _keep(self, key: bytes, home: Home) -> Home:
        self._homes[key] = home
        self._homes.move_to_end(key)
        if len(self._homes) > _MOST:
            self._homes.popitem(last=False)
        return home

    def _first(self, key: bytes, replica_set: ReplicaSet, tried: Sequence[Replica]) -> Replica | None:
        """The first replica that takes sequences, in an order that depends on the key and on addresses alone."""
        if replica_set.replicas is not self._hashes_of:
            self._hashes_of = replica_set.replicas
            self._replicas = list(replica_set.replicas.values())
            seeds = [hashes.of_address(address, _PURPOSE) for address in replica_set.replicas]
            self._hashes = np.array(seeds, np.uint64)
        ranks = hashes.points((self._hashes ^ np.uint64(hashes.of_bytes(key))).tolist(), 1).ravel()
        unhealthy: Replica | None = None
        for _ in self._replicas:
            place = int(ranks.argmax())
            replica = self._replicas[place]
            if replica not in tried:
                if takes_sequences(replica, replica_set):
                    return replica
                if unhealthy is None and not replica_set.balancer.refusal(replica):
                    unhealthy = replica
            ranks[place] = 0
        return unhealthy


def takes_sequences(replica: Replica, replica_set: ReplicaSet) -> bool:
    """By what all gateways see alike. Outlier ejection is one gateway's opinion: to go by it would split sequences."""
    if not replica.endpoint.healthy:
        return False
    refusal = replica_set.balancer.refusal(replica)
    # A standby worker where too few others are well; not where this gateway alone lends it.
    return not refusal or (refusal == STANDING_BY and replica_set.balancer.stands_in)
