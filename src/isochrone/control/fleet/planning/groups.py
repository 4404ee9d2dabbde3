"""Groups of models that change as one: tied by ``with``, or as stages of an ensemble. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def groups_of(names: Iterable[str], ties: Mapping[str, Collection[str]]) -> list[tuple[str, ...]]:
    """The names in groups, in their order. Two names are tied if one of them lists the other in ``ties``."""
    waiting = list(dict.fromkeys(names))
    groups: list[tuple[str, ...]] = []
    while waiting:
        group = {waiting[0]}
        while more := {
            other
            for other in waiting
            if other not in group and any(other in ties.get(one, ()) or one in ties.get(other, ()) for one in group)
        }:
            group |= more
        groups.append(tuple(name for name in waiting if name in group))
        waiting = [name for name in waiting if name not in group]
    return groups
