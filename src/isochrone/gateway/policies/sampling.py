"""Draws of members at random, for policies that look at a few instead of all. Must never walk a large fleet."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.gateway.targets import Target


def one(random: Random, targets: Sequence[Target], avoid: Sequence[Target]) -> Target:
    """A member at random that is not among ``avoid``, if there is one."""
    count = len(targets)
    slot = int(random.random() * count)
    target = targets[slot]
    if target not in avoid:
        return target
    # From there on the next one: past every avoided member there is another, or there is none at all.
    for step in range(1, min(count, len(avoid) + 1)):
        other = targets[(slot + step) % count]
        if other not in avoid:
            return other
    return target


def two(random: Random, targets: Sequence[Target]) -> tuple[Target, Target]:
    """Two different members at random; of one alone, that one twice."""
    count = len(targets)
    if count == 1:
        return targets[0], targets[0]
    first = int(random.random() * count)
    second = int(random.random() * (count - 1))
    if second >= first:
        second += 1
    return targets[first], targets[second]


def less_busy(random: Random, targets: Sequence[Target], avoid: Sequence[Target]) -> Target:
    """Of two members at random the one with fewer requests in flight from here."""
    if avoid:
        first, second = one(random, targets, avoid), one(random, targets, avoid)
    else:
        first, second = two(random, targets)
    return second if second.in_flight < first.in_flight else first
