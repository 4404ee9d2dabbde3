"""The requests that workers answer, from two readings of their statistics. Pure.

Workers count what gateways do not see as requests: those within a stream, copies to a shadow, and requests of clients
that pass no gateway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from isochrone.control.scaling.reading.fleet_counters import VersionStatistics, WorkerStatistics

#: The last rates of a worker that does not answer hold for this long.
_CARRY_SECONDS = 15.0
_NEVER = VersionStatistics({})


class Answered(NamedTuple):
    """Requests per second for one model."""

    successes: float = 0.0
    failures: float = 0.0


NOTHING = Answered()


@dataclass(slots=True)
class _Worker:
    statistics: WorkerStatistics
    #: Of its last answer.
    instant: float
    #: By model; none before the second reading.
    rates: Mapping[str, Answered] = field(default_factory=dict)
    #: Models that its ensembles run.
    stages: frozenset[str] = frozenset()
    #: Whether the configurations of all models that have run are known.
    is_configured: bool = False


class AnsweredLoad:
    """State of one pool: its workers, and those of the other pools of its models."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}

    def keep(self, names: Collection[str]) -> None:
        """Forget all other workers."""
        self._workers = {name: worker for name, worker in self._workers.items() if name in names}

    def take(self, name: str, statistics: WorkerStatistics, instant: float, models: Iterable[str]) -> None:
        """The next page of one worker. ``instant``: of its arrival."""
        known = self._workers.get(name)
        worker = _Worker(statistics, instant)
        self._workers[name] = worker
        every = [each for versions in statistics.models.values() for each in versions.values()]
        worker.is_configured = all(each.configuration is not None or not each.batches for each in every)
        worker.stages = frozenset(
            step for each in every if each.configuration is not None for step in each.configuration.steps
        )
        if known is None or instant <= known.instant:
            return
        is_same = known.statistics.incarnation == statistics.incarnation
        before = known.statistics.models if is_same else {}
        elapsed = instant - known.instant
        rates = {}
        for model in models:
            versions = statistics.models.get(model)
            if versions is not None and (found := _between(versions, before.get(model, {}))) != (0, 0):
                rates[model] = Answered(found[0] / elapsed, found[1] / elapsed)
        worker.rates = rates

    def add(self, name: str, totals: dict[str, Answered], now: float) -> None:
        """Add the rates of one worker to ``totals``, by model."""
        worker = self._workers.get(name)
        if worker is None or now - worker.instant > _CARRY_SECONDS:
            return
        for model, rate in worker.rates.items():
            total = totals.get(model, NOTHING)
            totals[model] = Answered(total.successes + rate.successes, total.failures + rate.failures)

    def stages(self, names: Iterable[str]) -> Collection[str] | None:
        """The stages of ensembles on these workers, whose answers are no requests of callers. None: a configuration is
        not known yet, so that any model may be a stage."""
        workers = [worker for name in names if (worker := self._workers.get(name)) is not None]
        if not all(worker.is_configured for worker in workers):
            return None
        return frozenset().union(*(worker.stages for worker in workers))


def _between(versions: Mapping[str, VersionStatistics], before: Mapping[str, VersionStatistics]) -> tuple[int, int]:
    """Successes and failures of all versions between two pages."""
    successes = failures = 0
    for version, now in versions.items():
        last = before.get(version, _NEVER)
        if (now.successes, now.failures) == (last.successes, last.failures):
            continue
        if now.has_begun_again(last):
            last = _NEVER
        successes += now.successes - last.successes
        failures += max(0, now.failures - last.failures)
    return successes, failures
