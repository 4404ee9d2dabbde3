"""Our autoscaler beside the others, on the same courses of load.

Ours runs with its defaults. Of each other algorithm all settings of a sweep are run, and the best for the course and
the seeds at hand counts, in hindsight: the fewest violations among the settings that need at most 0.5 % more
worker-hours than ours, or, if all need more, the cheapest. Without a common cost a comparison would be empty: a pool
that is large enough violates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import mean
from typing import Any

from isochrone.control.autoscaler.settings import AutoscalerSettings
from isochrone.simulate.autoscaling.courses import COURSES, Course
from isochrone.simulate.autoscaling.policies.base import Policy
from isochrone.simulate.autoscaling.policies.hpa import Hpa
from isochrone.simulate.autoscaling.policies.isochrone import Isochrone
from isochrone.simulate.autoscaling.policies.keda import Keda
from isochrone.simulate.autoscaling.policies.llm_d import CACHE_THRESHOLD, LlmD
from isochrone.simulate.autoscaling.policies.ray_serve import RayServe
from isochrone.simulate.autoscaling.pool import PoolSettings, capacity
from isochrone.simulate.autoscaling.run import Outcome, run
from isochrone.simulate.autoscaling.turning_points import load_direction_changes

OURS = "isochrone"
#: Worker-hours that others may need, relative to ours.
ALLOWANCE = 1.005
#: Halvings of the last step of a sweep.
_FINER = 5
_TARGETS = tuple(percent / 100 for percent in range(95, 28, -5))

_Outcomes = Callable[[str, Callable[[], Policy]], list[Outcome]]
#: Called before each run with the course, the algorithm and the seed.
Progress = Callable[[str, str, int], None]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the seeds."""

    mean: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Row:
    """One algorithm on one course."""

    algorithm: str
    #: The setting of the sweep; "": its defaults.
    setting: str
    #: Shares of the requests.
    violations: Spread
    late: Spread
    worker_hours: Spread
    direction_changes: Spread


@dataclass(frozen=True, slots=True)
class Comparison:
    """All algorithms on one course; ours first."""

    course: str
    #: Of the load itself.
    load_direction_changes: Spread
    rows: tuple[Row, ...]

    @property
    def best_other(self) -> Row:
        """Of those that cost no more than allowed, the one with the fewest violations."""
        ours, *others = self.rows
        within = [row for row in others if row.worker_hours.mean <= ours.worker_hours.mean * ALLOWANCE]
        return min(within or others, key=lambda row: row.violations.mean)

    def figures(self) -> dict[str, Any]:
        return asdict(self) | {"best_other": self.best_other.algorithm}


def compare(
    names: Sequence[str], seeds: Sequence[int], settings: PoolSettings, progress: Progress | None = None
) -> list[Comparison]:
    """One comparison for each named course."""
    comparisons = []
    for name in names:
        courses = [COURSES[name](seed) for seed in seeds]

        def outcomes(label: str, make: Callable[[], Policy], courses: list[Course] = courses) -> list[Outcome]:
            found = []
            for seed, course in zip(seeds, courses, strict=True):
                if progress is not None:
                    progress(course.name, label, seed)
                found.append(run(course, make(), settings))
            return found

        ours = _row(OURS, "", outcomes(OURS, lambda: Isochrone(our_settings(settings))))
        rows = [ours]
        for algorithm, sweeps in SWEEPS.items():
            swept = [row for sweep in sweeps for row in _swept(algorithm, sweep, outcomes, ours.worker_hours.mean)]
            rows.append(_best(swept, ours.worker_hours.mean))
        one = capacity(settings, 1.0)
        turns = [load_direction_changes(course.rates, settings.start_up, one) for course in courses]
        comparisons.append(Comparison(name, _spread(turns), tuple(rows)))
    return comparisons


def our_settings(settings: PoolSettings) -> AutoscalerSettings:
    """Our defaults: only what describes the pool is given."""
    return AutoscalerSettings(
        max_workers=settings.max_workers, slo_seconds=settings.slo, start_up_seconds=float(settings.start_up)
    )


@dataclass(frozen=True, slots=True)
class Sweep:
    """Settings that differ in one number, from cheap to expensive."""

    name: str
    make: Callable[[float], Policy]
    values: tuple[float, ...] = _TARGETS


#: By algorithm: its modes. KEDA with a trigger on the rate decides as the HPA on the rate, and is not run again.
SWEEPS: dict[str, tuple[Sweep, ...]] = {
    "HPA": (
        Sweep("utilisation {:.4g}", lambda target: Hpa(target, "utilisation")),
        Sweep("utilisation {:.4g}, down after 120 s", lambda target: Hpa(target, "utilisation", 120)),
        Sweep("rate {:.4g}", lambda target: Hpa(target, "rate")),
        Sweep("rate {:.4g}, down after 120 s", lambda target: Hpa(target, "rate", 120)),
    ),
    "KEDA": (
        Sweep("in flight {:.4g}", Keda),
        Sweep("in flight {:.4g}, down after 120 s", lambda target: Keda(target, stabilisation=120)),
    ),
    "Ray Serve": (
        Sweep("ongoing {:.4g}", RayServe),
        Sweep("ongoing {:.4g}, up after 10 s", lambda target: RayServe(target, upscale_delay=10)),
        Sweep("ongoing {:.4g}, up 10 s, down 120 s", lambda target: RayServe(target, 10, 120)),
    ),
    "llm-d": (
        Sweep("cache {:.4g}", lambda use: LlmD(CACHE_THRESHOLD - use), _TARGETS[4:]),
        Sweep(
            "cache {:.4g}, down after 300 s", lambda use: LlmD(CACHE_THRESHOLD - use, stabilisation=300), _TARGETS[4:]
        ),
    ),
}


def _swept(algorithm: str, sweep: Sweep, outcomes: _Outcomes, hours: float) -> Iterator[Row]:
    """Rows from cheap to expensive settings, up to the allowed hours, with finer steps at the end."""

    def row(value: float) -> Row:
        return _row(algorithm, sweep.name.format(value), outcomes(algorithm, partial(sweep.make, value)))

    cheaper = sweep.values[0]
    for value in sweep.values:
        found = row(value)
        yield found
        if found.worker_hours.mean > hours * ALLOWANCE:
            break
        cheaper = value
    else:
        return
    dearer = value
    for _ in range(_FINER if cheaper != dearer else 0):
        middle = (cheaper + dearer) / 2
        found = row(middle)
        yield found
        if found.worker_hours.mean > hours * ALLOWANCE:
            dearer = middle
        else:
            cheaper = middle


def _best(rows: Sequence[Row], hours: float) -> Row:
    within = [row for row in rows if row.worker_hours.mean <= hours * ALLOWANCE]
    if within:
        return min(within, key=lambda row: (row.violations.mean, row.worker_hours.mean))
    return min(rows, key=lambda row: row.worker_hours.mean)


def _row(algorithm: str, setting: str, outcomes: Sequence[Outcome]) -> Row:
    return Row(
        algorithm,
        setting,
        _spread([each.violations for each in outcomes]),
        _spread([each.late / each.offered for each in outcomes]),
        _spread([each.worker_hours for each in outcomes]),
        _spread([each.direction_changes for each in outcomes]),
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(mean(values), min(values), max(values))
