"""Draws of members at random, for policies that look at a few instead of all. Must never walk a large fleet."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.gateway.replicas import Replica


def one(random: Random, replicas: Sequence[Replica], avoid: Sequence[Replica]) -> Replica:
    """A member at random that is not among ``avoid``, if there is one."""
    count = len(replicas)
    slot = int(random.random() * count)
    replica = replicas[slot]
    if replica not in avoid:
        return replica
    # From there on the next one: past every avoided member there is another, or there is none at all.
    for step in range(1, min(count, len(avoid) + 1)):
        other = replicas[(slot + step) % count]
        if other not in avoid:
            return other
    return replica


def two(random: Random, replicas: Sequence[Replica]) -> tuple[Replica, Replica]:
    """Two different members at random; of one alone, that one twice."""
    count = len(replicas)
    if count == 1:
        return replicas[0], replicas[0]
    first = int(random.random() * count)
    second = int(random.random() * (count - 1))
    if second >= first:
        second += 1
    return replicas[first], replicas[second]


def less_busy(random: Random, replicas: Sequence[Replica], avoid: Sequence[Replica]) -> Replica:
    """Of two members at random the one with fewer requests in flight from here."""
    if avoid:
        first, second = one(random, replicas, avoid), one(random, replicas, avoid)
    else:
        first, second = two(random, replicas)
    return second if second.in_flight < first.in_flight else first
