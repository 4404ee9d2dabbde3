"""Times of batches from the counters of workers: a curve per model and kind of device, and each worker's speed. Pure.

Counters are those since a version was loaded, so that rare sizes of batches count, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from isochrone.control.scaling.reading.fleet_counters import (
    BatchCounts,
    ModelConfiguration,
    VersionStatistics,
    WorkerStatistics,
)

#: Sizes with fewer batches than this part of all are left out: their times are chance.
_RARE = 0.001
#: Points of a curve, at most.
_POINTS = 32
#: Batches that a worker must have run before it counts as faster or slower than others; differences below do not count.
_KNOWN_AFTER, _DIFFERENCE = 50, 0.05
_FASTEST = 20.0
_DIGITS = 4

#: By rows: batches and their ns.
Batches = Mapping[int, BatchCounts]
Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """What is measured of one model."""

    #: By kind of device.
    curves: Mapping[str, Points]
    #: By worker that differs from the others of its kind of device.
    speeds: Mapping[str, float]
    rows: int
    configuration: ModelConfiguration


@dataclass(slots=True)
class _Counts:
    batches: dict[int, BatchCounts] = field(default_factory=dict)
    successes: int = 0
    configurations: list[ModelConfiguration] = field(default_factory=list)


def model_times(
    model: str,
    version: str,
    workers: Mapping[str, WorkerStatistics | None],
    devices: Mapping[str, str],
) -> ModelTimes | None:
    """``devices``: by worker. None: no worker has run the model, or its configuration is not known."""
    by_worker = {
        name: _counts(statistics.models[model], version)
        for name, statistics in workers.items()
        if statistics is not None and model in statistics.models and name in devices
    }
    every = _summed(by_worker.values())
    configuration = next(iter(every.configurations), None)
    if configuration is None or not every.batches:
        return None
    shares = configuration.max_rows > 1
    curves: dict[str, Points] = {}
    for device in dict.fromkeys(devices[name] for name in by_worker):
        counts = _summed(each for name, each in by_worker.items() if devices[name] == device)
        if points := _points(counts.batches, shares):
            curves[device] = points
    if not curves:
        return None
    speeds = {
        name: speed
        for name, each in by_worker.items()
        if (speed := _speed(each.batches, curves.get(devices[name], ()), shares)) is not None
    }
    inferences = sum(rows * counts.executions for rows, counts in every.batches.items())
    rows = round(inferences / every.successes) if shares and every.successes else 1
    return ModelTimes(curves, speeds, max(1, min(rows, configuration.max_rows)), configuration)


def _counts(versions: Mapping[str, VersionStatistics], version: str) -> _Counts:
    """Those of the served version; of all of them where it has run nothing yet."""
    served = versions.get(version)
    chosen = [served] if served is not None and served.executions else list(versions.values())
    found = _Counts()
    for each in chosen:
        _add(found.batches, each.batches)
        found.successes += each.successes
        if each.configuration is not None:
            found.configurations.append(each.configuration)
    return found


def _summed(counts: Iterable[_Counts]) -> _Counts:
    total = _Counts()
    for each in counts:
        _add(total.batches, each.batches)
        total.successes += each.successes
        total.configurations += each.configurations
    return total


def _add(into: dict[int, BatchCounts], batches: Batches) -> None:
    for rows, (executions, nanoseconds) in batches.items():
        if rows > 0 and executions > 0 and nanoseconds > 0:
            before = into.get(rows, BatchCounts(0, 0))
            into[rows] = BatchCounts(before.executions + executions, before.compute_ns + nanoseconds)


def _points(batches: Batches, shares: bool) -> Points:
    """(rows, ms). Where requests do not share batches, one request is one row, whatever it has."""
    total = sum(counts.executions for counts in batches.values())
    if not total:
        return ()
    if not shares:
        return ((1, _rounded(sum(counts.compute_ns for counts in batches.values()) / total / 1e6)),)
    common = {rows: counts for rows, counts in batches.items() if counts.executions >= _RARE * total}
    often = sorted(common, key=lambda rows: common[rows].executions, reverse=True)[:_POINTS]
    return tuple((rows, _rounded(common[rows].compute_ns / common[rows].executions / 1e6)) for rows in sorted(often))


def _speed(batches: Batches, points: Points, shares: bool) -> float | None:
    """How fast a worker is, relative to a curve; None: as fast as that, or not known."""
    if not shares:
        batches = {1: BatchCounts(*map(sum, zip(*batches.values(), strict=True)))} if batches else {}
    means = dict(points)
    known = {rows: counts for rows, counts in batches.items() if rows in means}
    executions = sum(counts.executions for counts in known.values())
    nanoseconds = sum(counts.compute_ns for counts in known.values())
    if executions < _KNOWN_AFTER or not nanoseconds:
        return None
    speed = sum(counts.executions * means[rows] for rows, counts in known.items()) * 1e6 / nanoseconds
    if abs(speed - 1) < _DIFFERENCE:
        return None
    return _rounded(min(max(speed, 1 / _FASTEST), _FASTEST))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
