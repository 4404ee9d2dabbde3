"""Alerts about load and machines: queues, GPUs, the network, event loops, certificates. Pure."""

from __future__ import annotations

from isochrone.monitoring.recording import LOOP_LAG, QUEUE_SHARE, RATE
from isochrone.monitoring.rules import AlertRule, duration, figure
from isochrone.monitoring.thresholds import Thresholds


def load_alerts(limits: Thresholds) -> tuple[AlertRule, ...]:
    round_trip = "isochrone_gateway_worker_round_trip_seconds{FLEET}[10m]"
    left = "min by (fleet, role, name, instance) (isochrone_certificate_expiry_timestamp_seconds{FLEET}) - time()"
    utilization = "max by (fleet, gpu_uuid) (avg_over_time(nv_gpu_utilization{FLEET}[1h]))"
    at_workers = 'rate(isochrone_request_failures_total{FLEET, code="queue_full"}[5m])'
    at_gateways = 'rate(isochrone_gateway_rejections_total{FLEET, reason="queue_full"}[5m])'
    return (
        AlertRule(
            "BackPressure",
            f"{QUEUE_SHARE}{{FLEET}} > {figure(limits.queue_share)} and on (fleet, model) {RATE} > 0",
            120,
            "warning",
            "Requests to {{ $labels.model }} wait too long in queues",
            "A tenth of the requests to {{ $labels.model }} waited for more than {{ $value | humanizePercentage }} of"
            " their deadline before a worker computed them. The workers get more requests than they compute.",
        ),
        AlertRule(
            "QueueFull",
            f"sum by (fleet, model) ({at_workers} or {at_gateways}) > 0",
            120,
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
            f"max_over_time({round_trip}) - min_over_time({round_trip}) > {figure(limits.jitter_seconds)}",
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
