"""The thresholds of model placement, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Shares of compute, 0 to 1."""

    #: Above it, a model gets another replica and a worker gives models away. Queues of random arrivals begin to grow
    #: beyond about 70 %, so this comes before them.
    busy: float = 0.7
    #: A replica is given back if the others stay below this without it. Far below ``busy``, so that a load that varies
    #: by a fifth does not add and remove the same replica in turn.
    idle: float = 0.5
    #: A standing replica moves for balance alone only if its new worker stays lower than its old one was by this.
    margin: float = 0.25
    #: And only if it takes at least this share of its worker: each move costs a load.
    least_gain: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.idle < self.busy <= 1:
            raise InvalidArgument(f"placement: expected 0 < idle < busy <= 1, given {self.idle} and {self.busy}")
        if self.margin <= 0 or self.least_gain <= 0:
            raise InvalidArgument("placement: expected margin and least_gain above 0")
