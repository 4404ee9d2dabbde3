"""Alerts about load and machines: queues, GPUs, the network, event loops, certificates. Pure."""

from __future__ import annotations

from isochrone.monitoring.recording import LONG_QUEUE_RATIO, LOOP_LAG, RATE
from isochrone.monitoring.rules import AlertRule, duration, figure
from isochrone.monitoring.thresholds import Thresholds

#: Share of requests that wait long that is back-pressure: the p90 is then over the limit.
_WAITING = "0.1"
#: Share of requests rejected by full queues that is worth an alert.
_REJECTED = "0.01"


def load_alerts(limits: Thresholds) -> tuple[AlertRule, ...]:
    round_trip = "isochrone_gateway_worker_round_trip_seconds{FLEET}"
    left = "min by (fleet, role, name, instance) (isochrone_certificate_expiry_timestamp_seconds{FLEET}) - time()"
    utilization = "max by (fleet, gpu_uuid) (avg_over_time(nv_gpu_utilization{FLEET}[1h]))"
    return (
        AlertRule(
            "BackPressure",
            f"{LONG_QUEUE_RATIO}{{FLEET}} > {_WAITING} and on (fleet, model) {RATE} > 0",
            120,
            "warning",
            "Requests to {{ $labels.model }} wait too long in queues",
            "{{ $value | humanizePercentage }} of the requests to {{ $labels.model }} waited for more than"
            f" {limits.queue_share * 100:g}% of their deadline before a worker computed them. The workers get more"
            " requests than they compute.",
        ),
        AlertRule(
            "QueueFull",
            _queues_are_full(),
            180,
            "warning",
            "Requests to {{ $labels.model }} are rejected because queues are full",
            "{{ $value | humanize }} requests per second to {{ $labels.model }} were rejected with queue_full over the"
            " last five minutes.",
        ),
        AlertRule(
            "GpuUnderused",
            f"{utilization} < {figure(limits.gpu_share)}",
            3600,
            "info",
            "GPU {{ $labels.gpu_uuid }} is under-used",
            "The GPU {{ $labels.gpu_uuid }} computed {{ $value | humanizePercentage }} of the last hour. A GPU that"
            " waits costs as much as one that computes.",
        ),
        AlertRule(
            "NetworkJitter",
            # A worker that was retired has no round trip now.
            f"max_over_time({round_trip}[10m]) - min_over_time({round_trip}[10m]) > {figure(limits.jitter_seconds)}"
            f" and {round_trip}",
            300,
            "warning",
            "The round trip from {{ $labels.name }} to worker {{ $labels.worker }} varies",
            "The round trip from gateway {{ $labels.name }} to worker {{ $labels.worker }} varied by"
            " {{ $value | humanizeDuration }} within ten minutes. Requests that are placed by its estimate miss their"
            " deadlines.",
        ),
        AlertRule(
            "EventLoopStalls",
            f"{LOOP_LAG}{{FLEET}} > {figure(limits.loop_lag_seconds)}",
            300,
            "warning",
            "The event loop of {{ $labels.name }} stalls",
            "One in a hundred callbacks of {{ $labels.role }} {{ $labels.name }} ran {{ $value | humanizeDuration }}"
            " late or later, over the last five minutes. Every request of the process waits that long.",
        ),
        AlertRule(
            "CertificateExpires",
            f"{left} < {limits.certificate_days * 86400:.0f}",
            0,
            "critical",
            "The certificate of {{ $labels.name }} expires soon",
            "The certificate that {{ $labels.role }} {{ $labels.name }} serves expires in"
            f" {{{{ $value | humanizeDuration }}}}; less than {duration(limits.certificate_days * 86400)} are left."
            " Clients will refuse it then.",
        ),
    )


def _queues_are_full() -> str:
    """A share of all requests over five minutes, and still so: a burst has left the shorter window before the alert has
    held for long enough."""
    answered = f"{_full('5m')} + on (fleet, model) {RATE}"
    return f"{_full('5m')} > {_REJECTED} * ({answered} or {_full('5m')}) and {_full('2m')} > 0"


def _full(window: str) -> str:
    at_workers = f'rate(isochrone_request_failures_total{{FLEET, code="queue_full"}}[{window}])'
    at_gateways = f'rate(isochrone_gateway_rejections_total{{FLEET, reason="queue_full"}}[{window}])'
    return f"sum by (fleet, model) ({at_workers} or {at_gateways})"
