"""Latencies of a model: the waterfall of its stages against its budget, percentiles, and counts for the heat map. Pure.

The gateways measure their own share and the rest, which is the worker and the network. The workers say how long a
request would wait and run. What is left between the two measurements is shown as the network's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from isochrone.console.view.quantities import milliseconds, rounded
from isochrone.control.figures.frames import COMPUTE, GATEWAY, QUEUE, WORKER, ModelFigures

NETWORK: Final = "network"
#: Where the workers report neither waits nor run times.
WORKER_AND_NETWORK: Final = "worker and network"


@dataclass(frozen=True, slots=True)
class Segment:
    stage: str
    ms: float


@dataclass(frozen=True, slots=True)
class LatencyWaterfall:
    """The mean request, stage by stage in the order of time."""

    #: The deadline of requests that carry none; 0: none.
    budget_ms: float
    mean_ms: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Percentiles:
    #: Requests that ended, per second.
    rate: float
    p50: float
    p95: float
    p99: float
    #: Shares of the requests that ended: not answered by the deadline; failed; rejected.
    missed: float
    failed: float
    rejected: float


def percentiles(figures: ModelFigures, seconds: int) -> Percentiles:
    ended = figures.requests
    return Percentiles(
        rounded(ended / seconds if seconds else 0.0),
        milliseconds(figures.percentile_ns(0.5)),
        milliseconds(figures.percentile_ns(0.95)),
        milliseconds(figures.percentile_ns(0.99)),
        rounded(figures.deadline_misses / ended) if ended else 0.0,
        rounded(figures.failed / ended) if ended else 0.0,
        rounded(figures.rejected / ended) if ended else 0.0,
    )


def waterfall(figures: ModelFigures, deadline_ms: float) -> LatencyWaterfall:
    means = {stage: each.mean_ns for stage, each in figures.stages.items() if each.count}
    segments = []
    if GATEWAY in means:
        segments.append(Segment(GATEWAY, milliseconds(means[GATEWAY])))
    inside = [Segment(stage, milliseconds(means[stage])) for stage in (QUEUE, COMPUTE) if stage in means]
    if WORKER in means:
        rest = means[WORKER] - sum(means.get(stage, 0.0) for stage in (QUEUE, COMPUTE))
        name = NETWORK if inside else WORKER_AND_NETWORK
        # Reports are of other moments than the requests: what they say can exceed what was measured.
        segments.append(Segment(name, milliseconds(max(0.0, rest))))
    return LatencyWaterfall(deadline_ms, milliseconds(figures.mean_ns), (*segments, *inside))
