"""Readings of a small fleet, for tests of what is observed of a pool."""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.control.autoscaler.observation import Observation
from isochrone.control.scaling.measured.pool_observation import PoolMembers, PoolObserver
from isochrone.control.scaling.reading.fleet_counters import (
    BatchCounts,
    FleetReading,
    GatewayCounts,
    ModelConfiguration,
    RequestCounts,
    VersionStatistics,
    WorkerStatistics,
)

SLO = 0.2
ONE_INSTANCE = ModelConfiguration()


def gateway(received: int = 0, incarnation: str = "1", **others: int) -> GatewayCounts:
    """Of model ``m``."""
    return GatewayCounts(incarnation, {"m": RequestCounts(received, **others)})


def version(
    seconds: Mapping[int, float],
    executions: int = 10,
    configuration: ModelConfiguration | None = ONE_INSTANCE,
    **others: int,
) -> VersionStatistics:
    """``seconds``: by rows, the time of one batch. Each request has one row."""
    batches = {rows: BatchCounts(executions, round(executions * each * 1e9)) for rows, each in seconds.items()}
    answered = executions * sum(seconds)
    counts = {"queue_count": answered, "successes": answered, **others}
    return VersionStatistics(batches, **counts, configuration=configuration)


def worker(each: VersionStatistics, incarnation: str = "1", model: str = "m") -> WorkerStatistics:
    return WorkerStatistics(incarnation, {model: {"1": each}})


def added(one: VersionStatistics, other: VersionStatistics) -> VersionStatistics:
    """The totals after both."""
    batches = dict(one.batches)
    for rows, counts in other.batches.items():
        before = batches.get(rows, BatchCounts(0, 0))
        batches[rows] = BatchCounts(before.executions + counts.executions, before.compute_ns + counts.compute_ns)
    return VersionStatistics(
        batches,
        one.queue_ns + other.queue_ns,
        one.queue_count + other.queue_count,
        one.successes + other.successes,
        other.configuration,
        one.failures + other.failures,
    )


class Pool:
    """An observer and the clock of its readings, in steps of five seconds."""

    def __init__(self, members: PoolMembers | None = None) -> None:
        self.observer = PoolObserver(SLO)
        self.members = members or PoolMembers(frozenset("m"), ("a",))
        self.instant = 1000.0

    def observe(
        self,
        gateways: Mapping[str, GatewayCounts | None] | None = None,
        workers: Mapping[str, WorkerStatistics | None] | None = None,
        after: float = 5.0,
    ) -> Observation:
        self.instant += after
        reading = FleetReading(self.instant, gateways or {}, workers or {})
        return self.observer.observe(reading, self.members, self.instant + 0.5, None)
