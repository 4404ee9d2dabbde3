"""Models that are placed together, as one unit: an ensemble with its stages. Most units are one model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from isochrone.control.placement.needs import ModelNeeds


@dataclass(frozen=True, slots=True)
class Unit:
    """Models that have the same workers."""

    #: Stages before the ensembles that run them: the order of loading.
    members: tuple[ModelNeeds, ...]
    #: Bytes of all members, with what rollouts under way load beside them.
    bytes: int
    #: By group of models that change in one rollout: the bytes that a rollout of the members in it would load.
    rollouts: Mapping[str, int]
    #: Of the largest of these rollouts.
    rollout_bytes: int
    #: Whether one of these groups has models of other units.
    shares_rollouts: bool
    #: None: all.
    devices: frozenset[str] | None
    pools: frozenset[str] | None
    tiers: tuple[str, ...] | None
    instances: int
    min_replicas: int
    max_replicas: float
    isolated: bool
    apart: bool
    #: None: the rate of no member is measured.
    rate: float | None

    @property
    def name(self) -> str:
        """Of the ensemble; of a single model, its own."""
        return self.members[-1].name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def least(self) -> int:
        """Replicas that it must have: a model with callers has one."""
        return max(self.min_replicas, 1 if self.rate else 0)


def units_of(needs: Iterable[ModelNeeds]) -> list[Unit]:
    """All units, by name."""
    by_name = {each.name: each for each in needs}
    together = _joined(by_name, {name: each.together for name, each in by_name.items()})
    changing = _joined(by_name, {name: each.changes_with for name, each in by_name.items()})
    members: dict[str, list[ModelNeeds]] = {}
    for name in sorted(by_name):
        members.setdefault(together[name], []).append(by_name[name])
    homes: dict[str, set[str]] = {}
    for name in by_name:
        homes.setdefault(changing[name], set()).add(together[name])
    made = [_unit(each, changing, homes) for each in members.values()]
    return sorted(made, key=lambda unit: unit.name)


def _joined(names: Iterable[str], links: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By name: the first name of all that are linked with it, directly or through others."""
    root = {name: name for name in names}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for name, others in links.items():
        for other in others:
            if other in root:
                first, last = sorted((find(name), find(other)))
                root[last] = first
    return {name: find(name) for name in root}


def _unit(members: list[ModelNeeds], changing: Mapping[str, str], homes: Mapping[str, set[str]]) -> Unit:
    ordered = _stages_first(members)
    rollouts: dict[str, int] = {}
    for each in members:
        if not each.incoming:
            # A rollout under way is counted as loaded.
            rollouts[changing[each.name]] = rollouts.get(changing[each.name], 0) + each.memory
    rates = [each.rate for each in members if each.rate is not None]
    least = max(each.min_replicas for each in members)
    most = min(math.inf if each.max_replicas is None else each.max_replicas for each in members)
    return Unit(
        members=ordered,
        bytes=sum(each.memory + each.incoming for each in members),
        rollouts=rollouts,
        rollout_bytes=max(rollouts.values(), default=0),
        shares_rollouts=any(len(homes[group]) > 1 for group in rollouts),
        devices=_common([each.devices for each in members]),
        pools=_common([each.pools for each in members]),
        tiers=_common_order([each.tiers for each in reversed(ordered)]),
        instances=min(each.instances for each in members),
        min_replicas=least,
        max_replicas=max(least, most),
        isolated=any(each.isolated for each in members),
        apart=any(each.apart for each in members),
        rate=sum(rates) if rates else None,
    )


def _stages_first(members: list[ModelNeeds]) -> tuple[ModelNeeds, ...]:
    by_name = {each.name: each for each in members}
    ordered: dict[str, ModelNeeds] = {}
    open_names: set[str] = set()

    def visit(name: str) -> None:
        # A model that is reached again while it is open is part of a circle: any order will do.
        if name in ordered or name in open_names or name not in by_name:
            return
        open_names.add(name)
        for stage in sorted(by_name[name].together):
            visit(stage)
        ordered[name] = by_name[name]

    for each in members:
        visit(each.name)
    return tuple(ordered.values())


def _common(allowed: Sequence[tuple[str, ...]]) -> frozenset[str] | None:
    stated = [frozenset(each) for each in allowed if each]
    return frozenset.intersection(*stated) if stated else None


def _common_order(allowed: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """In the order of the first that states any."""
    common = _common(allowed)
    if common is None:
        return None
    return tuple(tier for tier in next(each for each in allowed if each) if tier in common)
