"""The result of a profile: what was measured, and what is recommended."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from isochrone.optimize.profiling.running.messages import Operator
from isochrone.optimize.profiling.search.search import Point
from isochrone.optimize.profiling.search.space import Configuration

#: Of all cores: what others may use without being mentioned.
_QUIET_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Failure:
    """A configuration under which the model failed."""

    configuration: Configuration
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    model: str
    version: int
    backend: str
    cores: int
    #: None: the knee is recommended.
    slo_ns: float | None
    points: tuple[Point, ...]
    failures: tuple[Failure, ...]
    found: Point
    #: Of one run of the recommended batch, slowest first; empty: the backend has no profiler that is read.
    operators: tuple[Operator, ...]
    #: Measurements of a full sweep of the same ranges.
    sweep_points: int
    seconds: float
    #: Whether the time ended before the search did.
    cut_short: bool

    @property
    def other_cores(self) -> float:
        """Cores that other processes used while this was measured, on average."""
        return mean(point.other_cores for point in self.points)

    @property
    def is_disturbed(self) -> bool:
        """Whether the figures are those of a busy machine."""
        return self.other_cores > _QUIET_SHARE * self.cores

    @property
    def keeps_slo(self) -> bool:
        return self.slo_ns is None or self.found.value.latency_ns <= self.slo_ns
