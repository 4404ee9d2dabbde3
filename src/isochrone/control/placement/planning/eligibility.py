"""Whether a worker may have a unit at all, whatever else is on it, and the compute that the unit would take there.

Workers that are equal in what decides this form a class, so that each unit is examined once per class.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from isochrone.control.placement.planning.units import Unit
from isochrone.control.placement.workers import DRAINING, WorkerOffer

#: Seconds by which round trips differ between classes: less than that decides nothing.
STEP = 0.00025


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The rule that keeps a unit off a worker, and its figures."""

    rule: str
    detail: str


def worker_class(worker: WorkerOffer) -> Hashable:
    return worker.state, worker.device, worker.pool, worker.tier, math.ceil(worker.round_trip / STEP)


def exclusion(unit: Unit, worker: WorkerOffer) -> Obstacle | None:
    """The first rule that keeps a unit off all workers of this class."""
    if worker.state == DRAINING:
        return Obstacle("draining", "it drains")
    if unit.pools is not None and worker.pool not in unit.pools:
        return Obstacle("pool", f"it is in pool {worker.pool or 'none'}; allowed: {_words(unit.pools)}")
    if unit.tiers is not None and worker.tier not in unit.tiers:
        return Obstacle("tier", f"it is in tier {worker.tier or 'none'}; allowed: {_words(unit.tiers)}")
    if unit.devices is not None and worker.device not in unit.devices:
        return Obstacle("device", f"its device is {worker.device}; allowed: {_words(unit.devices)}")
    for member in unit.members:
        left = member.budget - _round_trip(worker)
        if left <= 0 or member.seconds_per_row(worker.device, left) is None:
            return Obstacle(
                "latency",
                f"{member.name} must answer within {_milliseconds(member.budget)}; the round trip takes "
                f"{_milliseconds(_round_trip(worker))}, and no run fits into the rest",
            )
    return None


def demand(unit: Unit, worker: WorkerOffer) -> float:
    """Batches at the same time, on average, if one replica on such a worker took all requests; 0: not measured."""
    total = 0.0
    for member in unit.members:
        if member.rate:
            left = member.budget - _round_trip(worker)
            seconds = member.seconds_per_row(worker.device, left) if left > 0 else None
            if seconds is None:
                # Where it should not be, it counts as if it had all the time it needs.
                seconds = member.seconds_per_row(worker.device, math.inf) or 0.0
            total += member.rate * seconds
    return total


def tier_rank(unit: Unit, worker: WorkerOffer) -> int:
    """0: the preferred tier."""
    return unit.tiers.index(worker.tier) if unit.tiers and worker.tier in unit.tiers else 0


def _round_trip(worker: WorkerOffer) -> float:
    """The same for all workers of a class: rounded up."""
    return math.ceil(worker.round_trip / STEP) * STEP


def _words(names: frozenset[str] | tuple[str, ...]) -> str:
    return ", ".join(sorted(names) if isinstance(names, frozenset) else names) or "none that all its models share"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.4g} ms"
