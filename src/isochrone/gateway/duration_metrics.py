"""The durations of requests on a gateway's metrics page: by model, version and outcome, and by agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from isochrone.gateway.latencies.durations import COARSE_BOUNDS_NS, OWN_BOUNDS_NS
from isochrone.gateway.latencies.version_durations import OUTCOMES
from isochrone.observe.exemplars import with_exemplars

if TYPE_CHECKING:
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.latencies.agents import Agent


def duration_metrics(models: Iterable[ServedModel]) -> Iterator[Metric]:
    whole = HistogramMetricFamily(
        "isochrone_gateway_request_duration_seconds",
        "Time of requests as their callers saw it; of streams until the first answer",
        labels=("model", "version", "outcome"),
    )
    own = HistogramMetricFamily(
        "isochrone_gateway_own_duration_seconds",
        "The part of answered requests' time before the first sending and after the worker's answer",
        labels=("model", "version"),
    )
    for served in models:
        for version in served.durations.versions():
            version.fold()
            for outcome, durations in zip(OUTCOMES, version.of_outcome, strict=True):
                if durations is not None:
                    labels = (served.name, version.version, outcome)
                    buckets = with_exemplars(durations.cumulative(), durations.exemplars)
                    whole.add_metric(labels, buckets, durations.sum_ns / 1e9)
            if version.own.total:
                shares = version.own.cumulative(OWN_BOUNDS_NS, OWN_BOUNDS_NS)
                own.add_metric((served.name, version.version), shares, version.own.sum_ns / 1e9)
    yield from (whole, own)


def agent_metrics(agents: Iterable[Agent]) -> Iterator[Metric]:
    """``agents``: those with figures of their own, and the rest under an empty name."""
    whole = HistogramMetricFamily(
        "isochrone_gateway_agent_request_duration_seconds",
        'Time of requests as their callers saw it, of the agents with the most requests or misses; "": of all others',
        labels=("agent",),
    )
    misses = CounterMetricFamily(
        "isochrone_gateway_agent_deadline_misses",
        "Requests that were not answered by their deadlines",
        labels=("agent",),
    )
    for agent in agents:
        whole.add_metric((agent.name,), agent.durations.cumulative(COARSE_BOUNDS_NS), agent.durations.sum_ns / 1e9)
        misses.add_metric((agent.name,), agent.misses)
    yield from (whole, misses)
