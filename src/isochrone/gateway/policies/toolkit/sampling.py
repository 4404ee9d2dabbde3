"""Random draws of replicas, for policies that compare a few instead of all. The cost does not grow with the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.gateway.replicas import Replica


def one(random: Random, replicas: Sequence[Replica], avoid: Sequence[Replica]) -> Replica:
    """A random replica, not one of ``avoid`` if there is another."""
    count = len(replicas)
    slot = int(random.random() * count)
    replica = replicas[slot]
    if replica not in avoid:
        return replica
    # Take the next replica in order. After len(avoid) + 1 steps one is found, or all are to be avoided.
    for step in range(1, min(count, len(avoid) + 1)):
        other = replicas[(slot + step) % count]
        if other not in avoid:
            return other
    return replica


def two(random: Random, replicas: Sequence[Replica]) -> tuple[Replica, Replica]:
    """Two different random replicas; if there is only one, that one twice."""
    count = len(replicas)
    if count == 1:
        return replicas[0], replicas[0]
    first = int(random.random() * count)
    second = int(random.random() * (count - 1))
    if second >= first:
        second += 1
    return replicas[first], replicas[second]


def less_busy(random: Random, replicas: Sequence[Replica], avoid: Sequence[Replica]) -> Replica:
    """The one of two random replicas that has fewer requests in flight from this gateway."""
    if avoid:
        first, second = one(random, replicas, avoid), one(random, replicas, avoid)
    else:
        first, second = two(random, replicas)
    return second if second.in_flight < first.in_flight else first
