"""``isochrone gateway``: run one gateway in front of servers that speak the Open Inference Protocol."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from isochrone.cli.processes.flags.access import (
    AcceptUnsealedOption,
    AccessOption,
    FleetKeyOption,
    HealthPortOption,
    RequireSecureOption,
    UpstreamTokenOption,
    check_exposure,
    read_access,
)
from isochrone.cli.processes.flags.access_log import (
    AccessLogFileOption,
    AccessLogOption,
    LatencyHistogramsOption,
    MetricsOtlpOption,
    MetricsOtlpSecondsOption,
)
from isochrone.cli.processes.flags.audit import (
    AuditKeepOption,
    AuditKeyOption,
    AuditOption,
    AuditRedactOption,
    AuditRequestsOption,
)
from isochrone.cli.processes.flags.recorder import DEFAULT_RECORDER, DumpOption, RecorderOption
from isochrone.cli.processes.flags.tls import (
    TlsClientCaOption,
    TlsKeyOption,
    TlsPermissiveOption,
    read_metrics_tls,
    read_tls,
)
from isochrone.cli.processes.flags.trace import TraceOption, read_trace
from isochrone.cli.processes.flags.upstream import (
    AdvertiseOption,
    DnsOption,
    FileOption,
    FleetOption,
    LeaseOption,
    LimitOption,
    LogJsonOption,
    PolicyOption,
    ProbeIntervalOption,
    ProbeTimeoutOption,
    RulesOption,
    SeedOption,
    Sources,
    StoreOption,
    UpstreamOption,
    read_listen,
)
from isochrone.cli.processes.flags.wire_limits import parse_limits
from isochrone.cli.processes.gateway_membership import GatewayMembership
from isochrone.cli.processes.upstream_tls import (
    UpstreamCaOption,
    UpstreamCertOption,
    UpstreamKeyOption,
    UpstreamServerNameOption,
    read_upstream_tls,
)
from isochrone.errors import FlagError, IsochroneError
from isochrone.gateway.monitoring.monitor import MonitorRules
from isochrone.gateway.server.failures import StartFailed
from isochrone.gateway.server.server import GatewayServer, Link
from isochrone.gateway.server.settings import GatewaySettings
from isochrone.multiprocess.gateways import run_gateways
from isochrone.observe import logs
from isochrone.observe.access_log.settings import read_access_log
from isochrone.observe.flights.settings import read_recorder
from isochrone.observe.otlp_metrics.settings import read_metrics_export
from isochrone.protocol.access.origins import read_origins
from isochrone.secure.access.internal import internal_callers
from isochrone.secure.audit.settings import read_audit
from isochrone.secure.fleet_key import read_fleet_key

EPILOG = """
\b
Examples:
  isochrone gateway --upstream 10.0.0.1:8000 --upstream 10.0.0.2:8000
  isochrone gateway --listen 0.0.0.0:9000 --upstream-dns workers.default.svc:8000 --policy prequal
  isochrone gateway --upstream 10.0.0.1:8000,grpc=8001,metrics=8002    (a real Triton)
  isochrone gateway --upstream-file workers.txt --rules traffic.yaml --processes 4
  isochrone gateway --store sqlite:fleet.db --fleet demo --name gw-1        (as isochrone up starts it)

Point any Triton client at the listening port: it speaks HTTP and gRPC.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def gateway(
    listen: Annotated[str, typer.Option(help="host:port for HTTP and gRPC; port 0 picks a free one.")] = "0.0.0.0:8000",
    upstream: UpstreamOption = None,
    upstream_dns: DnsOption = None,
    upstream_file: FileOption = None,
    policy: PolicyOption = None,
    rules: RulesOption = None,
    metrics_port: Annotated[int, typer.Option(help="Port for /metrics; 0 picks a free one, -1: none.")] = 8002,
    health_port: HealthPortOption = -1,
    processes: Annotated[
        int, typer.Option(help="Processes that serve as one, on the same port: for more processor cores.", min=1)
    ] = 1,
    probe_interval: ProbeIntervalOption = 0.1,
    probe_timeout: ProbeTimeoutOption = 0.25,
    exit_timeout_secs: Annotated[float, typer.Option(help="Grace for in-flight requests when stopping.", min=0)] = 30.0,
    store: StoreOption = "",
    fleet: FleetOption = "default",
    name: Annotated[
        str, typer.Option(help="With --store: this gateway's own name.", show_default="host name and port")
    ] = "",
    advertise: AdvertiseOption = "",
    lease_seconds: LeaseOption = 5.0,
    server_name: Annotated[
        str, typer.Option(help="The name in the server metadata; some clients expect 'triton'.")
    ] = "isochrone-gateway",
    seed: SeedOption = None,
    limit: LimitOption = None,
    reuse_port: Annotated[
        bool, typer.Option("--reuse-port/--no-reuse-port", help="Let several gateways share the port (SO_REUSEPORT).")
    ] = False,
    allow_file_overrides: Annotated[
        bool,
        typer.Option(
            "--allow-file-overrides/--no-allow-file-overrides",
            help="Let load requests bring files along to the upstreams, code among them.",
        ),
    ] = False,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of a page that may use the gateway from a browser. May be repeated."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate: serve over TLS.")] = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: TlsClientCaOption = None,
    tls_permissive: TlsPermissiveOption = False,
    upstream_ca: UpstreamCaOption = None,
    upstream_cert: UpstreamCertOption = None,
    upstream_key: UpstreamKeyOption = None,
    upstream_server_name: UpstreamServerNameOption = "",
    access: AccessOption = None,
    require_secure: RequireSecureOption = False,
    fleet_key: FleetKeyOption = None,
    accept_unsealed: AcceptUnsealedOption = False,
    upstream_token_file: UpstreamTokenOption = None,
    trace_config: TraceOption = None,
    access_log: AccessLogOption = "off",
    access_log_file: AccessLogFileOption = "",
    audit: AuditOption = "",
    audit_requests: AuditRequestsOption = False,
    audit_key: AuditKeyOption = "",
    audit_keep: AuditKeepOption = 0.0,
    audit_redact: AuditRedactOption = "",
    metrics_otlp: MetricsOtlpOption = "",
    metrics_otlp_seconds: MetricsOtlpSecondsOption = 10.0,
    latency_histograms: LatencyHistogramsOption = True,
    flight_recorder: RecorderOption = DEFAULT_RECORDER,
    dump_flights: DumpOption = "",
    log_json: LogJsonOption = False,
) -> None:
    """Route requests to workers. By default each goes to the least busy of those that answer within about twice the
    time of the fastest; a request that no worker can answer within its deadline is rejected."""
    try:
        host, port = read_listen(listen)
        sources = Sources("gateway", upstream or (), upstream_dns or (), upstream_file or (), store)
        trace = read_trace(trace_config or ())
        key = read_fleet_key(fleet_key)
        file, is_fleet_access = read_access(access, store, key)
        if is_fleet_access and processes > 1:
            expected = "a file beside --processes; gateways that follow @fleet share a port with --reuse-port"
            raise FlagError("--access", expected, "@fleet")
        tls = read_tls(tls_cert, tls_key, tls_client_ca, tls_permissive, fleet_ca=upstream_ca if store else None)
        settings = GatewaySettings(
            host=host,
            port=port,
            metrics_port=None if metrics_port < 0 else metrics_port,
            health_port=None if health_port < 0 else health_port,
            upstreams=sources.upstreams,
            dns=sources.dns,
            files=sources.files,
            rules=sources.rules(rules, policy),
            monitoring=MonitorRules(interval=probe_interval, timeout=probe_timeout),
            exit_timeout=exit_timeout_secs,
            reuse_port=reuse_port,
            server_name=server_name,
            allow_file_overrides=allow_file_overrides,
            allow_origins=read_origins(allow_origin or ()),
            tls=tls,
            metrics_tls=read_metrics_tls(tls, upstream_ca, upstream_cert, upstream_key, store, tls_permissive),
            upstream_tls=read_upstream_tls(upstream_ca, upstream_cert, upstream_key, upstream_server_name),
            permits_plain=tls_permissive,
            access=file,
            is_fleet_access=is_fleet_access,
            internal=internal_callers(key),
            upstream_token=upstream_token_file,
            limits=parse_limits(limit or []),
            seed=seed,
            export=trace.export,
            trace_rate=trace.rate,
            traces_all_attempts=trace.sends_all,
            access_log=read_access_log(access_log, access_log_file, name),
            audit=read_audit(audit, audit_requests, audit_key, audit_keep, audit_redact, name, "gateway"),
            metrics_export=read_metrics_export(metrics_otlp, metrics_otlp_seconds, name or socket.gethostname()),
            counts_latencies=latency_histograms,
            recorder=read_recorder(flight_recorder, dump_flights),
        )
        logs.configure(json=log_json)
        check_exposure(
            "this gateway", [host], tls=settings.tls is not None, access=access is not None, required=require_secure
        )
        membership = GatewayMembership(store, fleet, name, advertise, lease_seconds, key, accept_unsealed)

        def link_of(number: int, bound: int) -> Callable[[GatewayServer], Link]:
            return replace(membership, name=f"{name or f'{socket.gethostname()}-{bound}'}.{number}").link

        if processes > 1:
            raise typer.Exit(run_gateways(settings, processes, link_of if store else None, _report))
        raise typer.Exit(uvloop.run(_serve(settings, membership)))
    except (StartFailed, IsochroneError, OSError) as error:
        _report(error)
        raise typer.Exit(1) from None


def _report(error: Exception) -> None:
    typer.echo(f"isochrone gateway: {error}", err=True)


async def _serve(settings: GatewaySettings, membership: GatewayMembership) -> int:
    server = GatewayServer(settings)
    if membership.store:
        server.make_link = membership.link
    return await server.run()
