"""What ``isochrone gateway`` asks of a gateway."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from isochrone.gateway.monitoring.monitor import MonitorRules
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.observe.access_log.settings import AccessLogSettings
from isochrone.observe.flights.settings import RecorderSettings
from isochrone.observe.otlp_metrics.settings import MetricsExport
from isochrone.observe.tracing.settings import ExportSettings
from isochrone.secure.access.internal import InternalCallers
from isochrone.secure.audit.settings import AuditSettings
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.tls.client_tls import ClientTls


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Settings of one gateway process."""

    host: str = "0.0.0.0"
    #: One port for HTTP/1.1 and gRPC; 0: any free one.
    port: int = 8000
    #: None: not served.
    metrics_port: int | None = 8002
    #: For health checks alone, without TLS and tokens; None: not served.
    health_port: int | None = None
    upstreams: tuple[Upstream, ...] = ()
    dns: tuple[Upstream, ...] = ()
    files: tuple[Path, ...] = ()
    rules: GatewayRules = field(default_factory=GatewayRules)
    monitoring: MonitorRules = field(default_factory=MonitorRules)
    #: Seconds in-flight requests get when stopping.
    exit_timeout: float = 30.0
    reuse_port: bool = False
    #: The name in the server metadata.
    server_name: str = "isochrone-gateway"
    #: Load requests may bring files along to plain upstreams: whoever reaches the gateway may then run code on them.
    allow_file_overrides: bool = False
    #: Origins of pages that may use the gateway from a browser, beside its own.
    allow_origins: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None
    #: Of the metrics port.
    metrics_tls: ssl.SSLContext | None = None
    #: For connections to workers; None: they are plain.
    upstream_tls: ClientTls | None = None
    #: Workers of the fleet that have no TLS yet get requests, too.
    permits_plain: bool = False
    #: The access file; None: every caller may do everything, unless the fleet's rules count.
    access: Path | None = None
    #: The rules come from the fleet's store.
    is_fleet_access: bool = False
    #: Recognises the fleet's own processes, and proves that this is one of them; None: nothing does.
    internal: InternalCallers | None = field(default=None, repr=False)
    #: The file with the token of its own calls to workers.
    upstream_token: Path | None = None
    limits: WireLimits = field(default_factory=WireLimits)
    seed: int | None = None
    #: Where traces go; None: requests are not traced.
    export: ExportSettings | None = None
    #: One in so many requests is traced, beside those that are kept for a reason of their own; 0: none.
    trace_rate: int = 1000
    #: Every request is sent with a trace context, not only those that are sampled.
    traces_all_attempts: bool = False
    #: Which requests are logged, and where; None: none are.
    access_log: AccessLogSettings | None = None
    #: The audit log of control calls, and perhaps of requests; None: nothing is recorded.
    audit: AuditSettings | None = None
    #: Where the figures of the metrics page go beside it; None: nowhere.
    metrics_export: MetricsExport | None = None
    #: Off, to measure what it costs: latencies of requests are not counted.
    counts_latencies: bool = True
    recorder: RecorderSettings = field(default_factory=RecorderSettings)
