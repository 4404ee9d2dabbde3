"""Probes, the wait before a stop, and the time that a stop may take. Pure.

At SIGTERM, workers and gateways stop accepting and finish their requests (``--exit-timeout-secs``): that is the drain.
A worker first deletes its record in the store, where gateways learn of it in milliseconds, so it needs no wait. The
callers of a gateway learn of its end from the Service, which takes seconds: it waits before SIGTERM and serves
meanwhile. ``sleep`` is the kubelet's own action, so the image needs no program for it.
"""

from __future__ import annotations

import math
from typing import Any

#: Seconds until a process that stopped itself must have ended: freeing models, deregistering.
_SLACK_SECONDS = 15
_STARTUP_PERIOD = 2
#: Ten minutes.
_STARTUP_FAILURES = 300


def _probe(path: str, port: str, period: int, failures: int, *, tls: bool = False) -> dict[str, Any]:
    # The kubelet verifies no certificate, and shows none.
    scheme = {"scheme": "HTTPS"} if tls else {}
    return {
        "httpGet": {"path": path, "port": port, **scheme},
        "periodSeconds": period,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    }


def of_worker(in_fleet: bool = True, port: str = "http") -> dict[str, Any]:
    """In a fleet, a worker has started when models can be loaded into it, and is ready when it serves those that are
    committed: an update does not replace the next one before."""
    return {
        "startupProbe": _probe("/v2/health/ready", port, _STARTUP_PERIOD, _STARTUP_FAILURES),
        "readinessProbe": _probe("/v2/health/committed" if in_fleet else "/v2/health/ready", port, 2, 2),
        "livenessProbe": _probe("/v2/health/live", port, 10, 6),
    }


def of_gateway(drain_seconds: float, port: str = "http") -> dict[str, Any]:
    """It is not ready before a fleet.yaml was applied, which may take longer than any start: it has started when it
    lives."""
    found = {
        "startupProbe": _probe("/v2/health/live", port, _STARTUP_PERIOD, _STARTUP_FAILURES),
        "readinessProbe": _probe("/v2/health/ready", port, 2, 2),
        "livenessProbe": _probe("/v2/health/live", port, 10, 6),
    }
    wait = math.ceil(drain_seconds)
    return {**found, "lifecycle": {"preStop": {"sleep": {"seconds": wait}}}} if wait else found


def of_controller(*, tls: bool = False) -> dict[str, Any]:
    """Its API answers once it has reached the store, and while the store is away later. It asks for no certificate."""
    return {
        "startupProbe": _probe("/v1/health", "http", _STARTUP_PERIOD, _STARTUP_FAILURES, tls=tls),
        "readinessProbe": _probe("/v1/health", "http", 5, 2, tls=tls),
        "livenessProbe": _probe("/v1/health", "http", 10, 6, tls=tls),
    }


def grace_seconds(exit_seconds: float, drain_seconds: float = 0.0) -> int:
    """terminationGracePeriodSeconds: the wait, the drain and some time to end."""
    return math.ceil(drain_seconds) + math.ceil(exit_seconds) + _SLACK_SECONDS
