"""The recording rules: latencies, queue waits, event loop lags, and the share of requests that missed their SLO. Pure.

A request is bad if it was answered late, failed by the fault of a server, or was rejected by a gateway. Mistakes of
callers, used-up quotas and quarantined requests are not. An attempt that fails at a worker and succeeds at another
counts as bad: workers do not know of the second attempt.
"""

from __future__ import annotations

from typing import Final

from isochrone.monitoring.rules import RecordingRule, RuleGroup, figure, one_of
from isochrone.monitoring.thresholds import Thresholds
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS

SLO: Final = "isochrone:slo_seconds"
RATE: Final = "isochrone:requests:rate5m"
P50: Final = "isochrone:request_seconds:p50_5m"
P99: Final = "isochrone:request_seconds:p99_5m"
VERSION_P95: Final = "isochrone:version_request_seconds:p95_5m"
VERSION_RATE: Final = "isochrone:version_requests:rate5m"
QUEUE_SHARE: Final = "isochrone:queue_share:p90_5m"
LOOP_LAG: Final = "isochrone:event_loop_lag_seconds:p99_5m"
BAD_RATIO: Final = "isochrone:bad_requests:ratio_rate"

#: Windows of the burn rates, the longer ones evaluated less often.
SHORT_WINDOWS: Final = ("5m", "30m", "1h", "2h")
LONG_WINDOWS: Final = ("6h", "1d", "3d")
_LONG_INTERVAL: Final = 60.0
#: Error codes of workers, and reasons of gateways, that are a server's fault. ``worker`` is not among the reasons: the
#: worker has counted that request.
_FAULTS: Final = '"deadline_exceeded|queue_full|unavailable|connection_lost|model_failed|fetch_failed|internal"'
_SECONDS: Final = "isochrone_request_duration_seconds"


def recording_groups(limits: Thresholds) -> tuple[RuleGroup, ...]:
    classes = _slo_classes(limits)
    return (
        RuleGroup("recording", (*_slos(limits), *_latencies(), *_ratios(SHORT_WINDOWS, classes))),
        RuleGroup("recording-long", tuple(_ratios(LONG_WINDOWS, classes)), _LONG_INTERVAL),
    )


def _slos(limits: Thresholds) -> list[RecordingRule]:
    """The SLO of each model as a series, so that one alert serves all models."""
    found = [
        RecordingRule(SLO, f"vector({figure(seconds)})", {"fleet": limits.fleet, "model": model})
        for model, seconds in sorted(limits.slo_seconds.items())
    ]
    others = f"group by (fleet, model) (isochrone_model_info{{FLEET{_others(limits)}}})"
    return [*found, RecordingRule(SLO, f"{others} * {figure(limits.default_slo_seconds)}")]


def _others(limits: Thresholds) -> str:
    return f", model!~{one_of(limits.slo_seconds)}" if limits.slo_seconds else ""


def _latencies() -> list[RecordingRule]:
    whole, queue = (f'{_SECONDS}_bucket{{FLEET, stage="{stage}"}}[5m]' for stage in ("request", "queue"))
    count = f'{_SECONDS}_count{{FLEET, stage="request"}}[5m]'
    lag = "isochrone_event_loop_lag_seconds_bucket{FLEET}[5m]"
    return [
        RecordingRule(RATE, f"sum by (fleet, model) (rate({count}))"),
        RecordingRule(P50, _quantile(0.5, "fleet, model", whole)),
        RecordingRule(P99, _quantile(0.99, "fleet, model", whole)),
        RecordingRule(VERSION_RATE, f"sum by (fleet, model, version) (rate({count}))"),
        RecordingRule(VERSION_P95, _quantile(0.95, "fleet, model, version", whole)),
        RecordingRule(QUEUE_SHARE, f"{_quantile(0.9, 'fleet, model', queue)} / on (fleet, model) {SLO}"),
        RecordingRule(LOOP_LAG, _quantile(0.99, "fleet, role, name, instance", lag)),
    ]


def _quantile(share: float, labels: str, buckets: str) -> str:
    return f"histogram_quantile({share:g}, sum by ({labels}, le) (rate({buckets})))"


def _slo_classes(limits: Thresholds) -> list[tuple[str, str]]:
    """(matcher of models, bound of the bucket that holds answers in time): models whose SLOs share a bucket are one
    class."""
    models: dict[str, list[str]] = {}
    for model, seconds in limits.slo_seconds.items():
        models.setdefault(bucket_of(seconds), []).append(model)
    named = [(f", model=~{one_of(each)}", bound) for bound, each in sorted(models.items())]
    return [*named, (_others(limits), bucket_of(limits.default_slo_seconds))]


def bucket_of(seconds: float) -> str:
    """The ``le`` of the first bucket that holds every answer within an SLO. An SLO between two bounds counts as the
    upper one: no answer in time is called late."""
    nanoseconds = round(seconds * 1e9)
    return next((str(bound / 1e9) for bound in BUCKET_BOUNDS_NS if bound >= nanoseconds), "+Inf")


def _ratios(windows: tuple[str, ...], classes: list[tuple[str, str]]) -> list[RecordingRule]:
    return [
        RecordingRule(BAD_RATIO + window, " or ".join(_ratio(window, *each) for each in classes)) for window in windows
    ]


def _ratio(window: str, models: str, bound: str) -> str:
    # The parts have different labels, so that ``or`` keeps all of them, and one that is absent takes nothing away.
    answered = f'rate({_SECONDS}_count{{FLEET{models}, stage="request"}}[{window}])'
    in_time = f'rate({_SECONDS}_bucket{{FLEET{models}, stage="request", le="{bound}"}}[{window}])'
    failed = f"rate(isochrone_request_failures_total{{FLEET{models}, code=~{_FAULTS}}}[{window}])"
    rejected = f"rate(isochrone_gateway_rejections_total{{FLEET{models}, reason=~{_FAULTS}}}[{window}])"
    late = f"({answered} - ignoring (le) {in_time})"
    return (
        f"sum by (fleet, model) ({late} or {failed} or {rejected})"
        f" / sum by (fleet, model) ({answered} or {failed} or {rejected})"
    )
