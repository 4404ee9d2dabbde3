"""What a model needs of the workers that have it: memory, compute, latency, and who may be beside it.

Figures that nobody measured are absent, never guessed: a model without a measured rate keeps its replicas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from isochrone.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class BatchCurve:
    """Measured run times of a model on one kind of device: (rows, seconds), by growing rows."""

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        rows = [count for count, _ in self.points]
        if not rows or rows != sorted(set(rows)) or rows[0] < 1:
            raise InvalidArgument(f"batch curve: expected growing numbers of rows from 1, given {rows}")
        if not all(0 < seconds < math.inf for _, seconds in self.points):
            raise InvalidArgument("batch curve: expected run times above 0 seconds")

    def seconds_per_row(self, budget: float) -> float | None:
        """Compute per row with the best batch that keeps a budget in seconds; None: no run keeps it.

        A row that arrives just after a batch has started waits for that run and then for its own: a batch size keeps
        the budget if two runs do (as in Nexus). One row alone must keep it with a single run; where the smallest batch
        that was measured has several, one row takes at least its part of that.
        """
        rows, seconds = self.points[0]
        if seconds / rows > budget:
            return None
        within = [seconds / rows for rows, seconds in self.points if 2 * seconds <= budget]
        return min(within, default=seconds / rows)


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """One model."""

    name: str
    #: Bytes of one version on a worker; 0: not stated, not checked.
    memory: int = 0
    #: Bytes of the version that a rollout under way loads beside it; 0: none is under way.
    incoming: int = 0
    #: Rows that callers offer per second, accepted or not; None: not measured.
    rate: float | None = None
    #: By kind of device. A kind that is missing counts as the slowest one that is there; none: compute is not counted.
    curves: Mapping[str, BatchCurve] = field(default_factory=dict)
    #: Seconds from the gateway and back within which an answer must come.
    budget: float = math.inf
    #: Batches that one replica runs at the same time.
    instances: int = 1
    #: Kinds of devices, pools and tiers that may have it, tiers in the order of preference; (): all.
    devices: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    min_replicas: int = 1
    max_replicas: int | None = None
    #: No other model may be on its workers.
    isolated: bool = False
    #: Each of its replicas is on a machine of its own.
    apart: bool = False
    #: Models that must be on each of its workers: the stages of an ensemble.
    together: tuple[str, ...] = ()
    #: Models that change in one rollout with it.
    changes_with: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.memory < 0 or self.incoming < 0 or self.min_replicas < 0 or self.instances < 1:
            raise InvalidArgument(f"needs of {self.name}: memory, replicas and instances must not be negative")
        if self.rate is not None and not 0 <= self.rate < math.inf:
            raise InvalidArgument(f"needs of {self.name}: expected a rate of 0 or more, given {self.rate}")
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise InvalidArgument(f"needs of {self.name}: max_replicas is below min_replicas")

    def seconds_per_row(self, device: str, budget: float) -> float | None:
        """Compute per row on a kind of device; 0: not measured; None: no run keeps the budget."""
        if not self.curves:
            return 0.0
        known = self.curves.get(device)
        if known is None:
            known = max(self.curves.values(), key=lambda curve: curve.points[0][1] / curve.points[0][0])
        return known.seconds_per_row(budget)
