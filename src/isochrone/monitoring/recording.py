"""The recording rules: latencies, queue waits, event loop lags, the error budget, and the controller to believe. Pure.

Latencies are those that callers see at gateways. Of requests that come without a gateway they are those of workers.
"""

from __future__ import annotations

from typing import Final

from isochrone.monitoring.error_budget import (
    ANSWERED,
    AT_GATEWAYS,
    AT_WORKERS,
    LONG_WINDOWS,
    SHORT_WINDOWS,
    WHOLE,
    bad_ratios,
)
from isochrone.monitoring.rules import RecordingRule, RuleGroup, figure
from isochrone.monitoring.slo_classes import other_models, slo_classes
from isochrone.monitoring.thresholds import Thresholds

SLO: Final = "isochrone:slo_seconds"
RATE: Final = "isochrone:requests:rate5m"
P50: Final = "isochrone:request_seconds:p50_5m"
P99: Final = "isochrone:request_seconds:p99_5m"
LATE_RATIO: Final = "isochrone:late_requests:ratio_rate5m"
VERSION_RATE: Final = "isochrone:version_requests:rate5m"
VERSION_MEAN: Final = "isochrone:version_request_seconds:mean_5m"
VERSION_P95: Final = "isochrone:version_request_seconds:p95_5m"
QUEUE_SHARE: Final = "isochrone:queue_share:p90_5m"
LONG_QUEUE_RATIO: Final = "isochrone:long_queue:ratio_rate5m"
LOOP_LAG: Final = "isochrone:event_loop_lag_seconds:p99_5m"
CONTROLLER: Final = "isochrone:controller"

_LONG_INTERVAL: Final = 60.0


def recording_groups(limits: Thresholds, *, with_controllers: bool) -> tuple[RuleGroup, ...]:
    classes = list(slo_classes(limits))
    first = (*_controllers(), *_slos(limits)) if with_controllers else tuple(_slos(limits))
    return (
        RuleGroup("recording", (*first, *_latencies(limits), *bad_ratios(SHORT_WINDOWS, classes))),
        RuleGroup("recording-long", tuple(bad_ratios(LONG_WINDOWS, classes)), _LONG_INTERVAL),
    )


def _controllers() -> list[RecordingRule]:
    """One controller, which every alert then believes: it reaches the store and has the highest epoch. Others may have
    kept the figures of an earlier moment, and two of them together would describe a fleet that never was."""
    connected = "isochrone_controller_store_connected{FLEET} == 1"
    believed = f"isochrone_controller_epoch{{FLEET}} and on (fleet, instance) ({connected})"
    return [RecordingRule(CONTROLLER, f"topk by (fleet) (1, {believed})")]


def of_controller(selector: str) -> str:
    """The figures of the believed controller alone. ``selector``: of a controller's metric."""
    return f"({selector} and on (fleet, instance) {CONTROLLER}{{FLEET}})"


def _slos(limits: Thresholds) -> list[RecordingRule]:
    """The SLO of each model as a series, so that one alert serves all models."""
    found = [
        RecordingRule(SLO, f"vector({figure(seconds)})", {"fleet": limits.fleet, "model": model})
        for model, seconds in sorted(limits.slo_seconds.items())
    ]
    others = f"group by (fleet, model) (isochrone_model_info{{FLEET{other_models(limits)}}})"
    return [*found, RecordingRule(SLO, f"{others} * {figure(limits.default_slo_seconds)}")]


def _latencies(limits: Thresholds) -> list[RecordingRule]:
    lag = "rate(isochrone_event_loop_lag_seconds_bucket{FLEET}[5m])"
    queue = f'rate({AT_WORKERS}_bucket{{FLEET, stage="queue"}}[5m])'
    return [
        RecordingRule(RATE, _first(*(f"{_rate('fleet, model', *each)} > 0" for each in _SIDES))),
        RecordingRule(P50, _first(*(_quantile_of(0.5, "fleet, model", *each) for each in _SIDES))),
        RecordingRule(P99, _first(*(_quantile_of(0.99, "fleet, model", *each) for each in _SIDES))),
        RecordingRule(LATE_RATIO, " or ".join(_late(*each) for each in slo_classes(limits))),
        *_versions(),
        RecordingRule(QUEUE_SHARE, f"{_quantile(0.9, 'fleet, model', queue)} / on (fleet, model) {SLO}"),
        RecordingRule(
            LONG_QUEUE_RATIO,
            " or ".join(
                _beyond(AT_WORKERS, f'{models}, stage="queue"', bound)
                for models, bound in slo_classes(limits, limits.queue_share)
            ),
        ),
        RecordingRule(LOOP_LAG, _quantile(0.99, "fleet, role, name, instance", lag)),
    ]


#: Histogram and matcher of whole requests: as callers see them, then as workers do.
_SIDES: Final = ((AT_GATEWAYS, ANSWERED), (AT_WORKERS, WHOLE))


def _first(*sides: str) -> str:
    """The first side that has a value, per model."""
    return " or ".join(sides)


def _versions() -> list[RecordingRule]:
    """As workers see them, which are the versions' own times; of servers without our histograms as gateways do."""
    labels, sides = "fleet, model, version", _SIDES[::-1]
    means = (
        f"sum by ({labels}) (rate({histogram}_sum{{FLEET, {matcher}}}[5m])) / ({_rate(labels, histogram, matcher)} > 0)"
        for histogram, matcher in sides
    )
    return [
        RecordingRule(VERSION_RATE, _first(*(f"{_rate(labels, *each)} > 0" for each in sides))),
        RecordingRule(VERSION_MEAN, _first(*means)),
        RecordingRule(VERSION_P95, _first(*(_quantile_of(0.95, labels, *each) for each in sides))),
    ]


def _rate(labels: str, histogram: str, matcher: str) -> str:
    return f"sum by ({labels}) (rate({histogram}_count{{FLEET, {matcher}}}[5m]))"


def _quantile_of(share: float, labels: str, histogram: str, matcher: str) -> str:
    """Without a value where there are no requests: then it would be NaN."""
    return f"{_quantile(share, labels, f'rate({histogram}_bucket{{FLEET, {matcher}}}[5m])')} >= 0"


def _quantile(share: float, labels: str, rates: str) -> str:
    return f"histogram_quantile({share:g}, sum by ({labels}, le) ({rates}))"


def _late(models: str, bound: str) -> str:
    return _first(*(_beyond(histogram, f"{models}, {matcher}", bound) for histogram, matcher in _SIDES))


def _beyond(histogram: str, matchers: str, bound: str) -> str:
    """The share of times beyond a bound of the histogram: exact, while a quantile is interpolated between bounds."""
    whole = f"sum by (fleet, model) (rate({histogram}_count{{FLEET{matchers}}}[5m])) > 0"
    within = f'sum by (fleet, model) (rate({histogram}_bucket{{FLEET{matchers}, le="{bound}"}}[5m]))'
    return f"1 - {within} / ({whole})"
