"""What a configuration is worth: rows per second, and whether the latency keeps the SLO."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isochrone.clock import SECOND
from isochrone.optimize.profiling.search.space import Configuration

#: Throughputs that differ by less are equal: the smaller configuration wins.
NOISE = 0.03
#: Without an SLO: the lowest latency among configurations with so much of the highest throughput.
KNEE = 0.95


@dataclass(frozen=True, slots=True)
class Value:
    """A configuration with its measured or expected figures."""

    configuration: Configuration
    #: Of all instances together, each with one batch after the other.
    rows_per_second: float
    #: The 99th percentile of runs, and the time in which the batch fills at that throughput.
    latency_ns: float


def value_of(configuration: Configuration, rows_per_second: float, p99_ns: float) -> Value:
    fill = (configuration.batch - 1) / rows_per_second * SECOND if rows_per_second else 0.0
    return Value(configuration, rows_per_second, p99_ns + fill)


def best(values: Iterable[Value], slo_ns: float | None) -> Value:
    """The value to prefer, of at least one. If none keeps the SLO, the one of the lowest latency."""
    values = list(values)
    kept = [value for value in values if slo_ns is None or value.latency_ns <= slo_ns]
    if not kept:
        return min(values, key=lambda value: (value.latency_ns, *_size(value)))
    highest = max(value.rows_per_second for value in kept)
    if slo_ns is None:
        tied = [value for value in kept if value.rows_per_second >= KNEE * highest]
        return min(tied, key=lambda value: (value.latency_ns, *_size(value)))
    tied = [value for value in kept if value.rows_per_second >= (1 - NOISE) * highest]
    return min(tied, key=_size)


def _size(value: Value) -> tuple[int, int, int]:
    """Cores first; then instances, each of which holds the weights."""
    configuration = value.configuration
    return configuration.cores, configuration.instances, configuration.batch
