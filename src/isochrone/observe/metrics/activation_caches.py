"""The metrics of activation caches. A server without such a model has none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from isochrone.observe.snapshot import ActivationSnapshot

_LABELS: Final = ("model", "version")

_Value = Callable[[ActivationSnapshot], float]
_COUNTERS: Final[tuple[tuple[str, str, _Value], ...]] = (
    (
        "isochrone_activation_cache_evictions",
        "Key frames evicted because of the limit of bytes",
        lambda each: each.evictions,
    ),
    (
        "isochrone_activation_cache_saved_seconds",
        "Time that computing the reused outputs took",
        lambda each: each.saved_ns / 1e9,
    ),
    (
        "isochrone_activation_cache_comparison_seconds",
        "Time of comparing pictures with key frames, of hits and misses",
        lambda each: each.comparison_ns / 1e9,
    ),
    (
        "isochrone_activation_cache_samples",
        "Hits that were computed nevertheless, to measure the error of reuse",
        lambda each: each.samples,
    ),
    (
        "isochrone_activation_cache_samples_over_budget",
        "Samples whose error exceeded the budget",
        lambda each: each.samples_over_budget,
    ),
)
_GAUGES: Final[tuple[tuple[str, str, _Value], ...]] = (
    ("isochrone_activation_cache_entries", "Key frames", lambda each: each.entries),
    ("isochrone_activation_cache_bytes", "Bytes of key frames and their outputs", lambda each: each.bytes_used),
    ("isochrone_activation_cache_limit_bytes", "The limit of these bytes", lambda each: each.limit_bytes),
    (
        "isochrone_activation_cache_error",
        "Relative error of outputs that reuse causes: the running estimate from samples",
        lambda each: each.error,
    ),
    (
        "isochrone_activation_cache_error_largest",
        "The largest error of one sample since the load",
        lambda each: each.largest_error,
    ),
    (
        "isochrone_activation_cache_error_budget",
        "The error at which reuse is suspended",
        lambda each: each.error_budget,
    ),
    (
        "isochrone_activation_cache_alarm",
        "1 while the error exceeds its budget and nothing is reused",
        lambda each: float(each.is_alarmed),
    ),
)


def activation_metrics(models: Sequence[ActivationSnapshot]) -> Iterator[Metric]:
    if not models:
        return
    hits = CounterMetricFamily(
        "isochrone_activation_cache_hits", "Requests answered with reused outputs, by scope", labels=(*_LABELS, "scope")
    )
    misses = CounterMetricFamily(
        "isochrone_activation_cache_misses",
        "Requests with a camera or a place that were computed, by reason",
        labels=(*_LABELS, "reason"),
    )
    for model in models:
        labels = (model.model_name, model.model_version)
        for scope, count in model.hits.items():
            hits.add_metric((*labels, scope), count)
        for reason, count in model.misses.items():
            misses.add_metric((*labels, reason), count)
    yield hits
    yield misses
    for made, families in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
        for name, documentation, value in families:
            family = made(name, documentation, labels=_LABELS)
            for model in models:
                family.add_metric((model.model_name, model.model_version), value(model))
            yield family
