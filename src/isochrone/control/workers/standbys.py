"""Which workers of a pool stand by: they have loaded what is committed, and gateways send them no requests. Pure.

A pool with ``warm`` workers has so many processes more than ``workers``. When it grows, or when one of those that serve
is lost, a standby worker takes its place at once, while a new process starts. Nobody changes places without need: a
worker that comes back stands by.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def standbys(
    names: Sequence[str],
    serving: int,
    standing_by: Collection[str],
    registered: Collection[str],
    ready: Collection[str],
) -> set[str]:
    """The workers of one pool that should stand by.

    ``names``: all of its processes that are not drained, in the order of their numbers. ``serving``: how many of them
    should get requests. ``standing_by``: those that stand by now. ``ready``: those of the ``registered`` that have
    loaded all that is committed.
    """

    def usable(name: str) -> int:
        return 2 if name in ready else 1 if name in registered else 0

    # Those that serve first, then those that could; each in the order of their numbers.
    order = sorted(names, key=lambda name: (-usable(name), name in standing_by, names.index(name)))
    return set(order[max(0, serving) :])
