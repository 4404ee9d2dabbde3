"""The metrics of divided models. A server without such a model has none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from isochrone.observe.snapshot import DividedSnapshot

_LABELS = ("model", "version")

_GAUGES: tuple[tuple[str, str, Callable[[DividedSnapshot], float]], ...] = (
    (
        "isochrone_division_link_round_trip_seconds",
        "Least round trip to the core of late",
        lambda each: each.round_trip,
    ),
    (
        "isochrone_division_link_jitter_seconds",
        "Spread of the round trips to the core of late",
        lambda each: each.jitter,
    ),
    (
        "isochrone_division_link_bytes_per_second",
        "Bandwidth to the core, as last seen",
        lambda each: each.bytes_per_second,
    ),
    ("isochrone_division_core_answers", "0 while the core does not answer", lambda each: float(each.core_answers)),
)


def division_metrics(models: Sequence[DividedSnapshot]) -> Iterator[Metric]:
    if not models:
        return
    present = GaugeMetricFamily(
        "isochrone_division_present",
        "1 for the division of requests that name none",
        labels=(*_LABELS, "division"),
    )
    late = GaugeMetricFamily(
        "isochrone_division_late_seconds",
        "Expected time of a request, with a margin for the link; only of divisions that are offered",
        labels=(*_LABELS, "division"),
    )
    requests = CounterMetricFamily(
        "isochrone_division_requests", "Runs of requests, by division", labels=(*_LABELS, "division")
    )
    moves = CounterMetricFamily(
        "isochrone_division_moves", "Moves of the present division, by reason", labels=(*_LABELS, "reason")
    )
    fallbacks = CounterMetricFamily(
        "isochrone_division_fallbacks", "Requests that ran on the edge after the core failed", labels=_LABELS
    )
    for model in models:
        labels = (model.model_name, model.model_version)
        for division, count in model.requests.items():
            present.add_metric((*labels, division), float(division == model.present))
            requests.add_metric((*labels, division), count)
        for division, seconds in model.late_seconds.items():
            late.add_metric((*labels, division), seconds)
        for reason, count in model.moves.items():
            moves.add_metric((*labels, reason), count)
        fallbacks.add_metric(labels, model.fallbacks)
    yield from (present, late, requests, moves, fallbacks)
    for name, documentation, value in _GAUGES:
        family = GaugeMetricFamily(name, documentation, labels=_LABELS)
        for model in models:
            family.add_metric((model.model_name, model.model_version), value(model))
        yield family
