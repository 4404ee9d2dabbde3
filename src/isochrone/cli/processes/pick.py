"""``isochrone pick``: run one endpoint picker, which chooses workers for an Envoy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import uvloop

from isochrone.cli.processes.flags.access import AcceptUnsealedOption, FleetKeyOption
from isochrone.cli.processes.flags.tls import (
    TlsClientCaOption,
    TlsKeyOption,
    TlsPermissiveOption,
    read_metrics_tls,
    read_tls,
)
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
from isochrone.errors import IsochroneError
from isochrone.gateway.monitoring.monitor import MonitorRules
from isochrone.gateway.picker.server import MAX_CONTROL_FRAMES_PER_SECOND, PickerServer
from isochrone.gateway.server.failures import StartFailed
from isochrone.gateway.server.settings import GatewaySettings
from isochrone.observe import logs
from isochrone.secure.access.internal import internal_callers
from isochrone.secure.fleet_key import read_fleet_key

EPILOG = """
\b
Examples:
  isochrone pick --upstream 10.0.0.1:8000 --upstream 10.0.0.2:8000
  isochrone pick --listen 127.0.0.1:9002 --upstream-file workers.txt --rules traffic.yaml
  isochrone pick --upstream-dns workers.default.svc:8000 --policy prequal --tls-cert tls.crt --tls-key tls.key
  isochrone pick --store sqlite:fleet.db --fleet demo --name picker-1     (with the versions of a fleet)

Envoy calls it by its ext_proc filter: docs/picker.md has a configuration.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def pick(
    listen: Annotated[str, typer.Option(help="host:port for Envoy; port 0 picks a free one.")] = "0.0.0.0:9002",
    health_port: Annotated[
        int, typer.Option(help="Port for gRPC health checks, without TLS; 0 picks a free one, -1: none.")
    ] = 9003,
    upstream: UpstreamOption = None,
    upstream_dns: DnsOption = None,
    upstream_file: FileOption = None,
    policy: PolicyOption = None,
    rules: RulesOption = None,
    metrics_port: Annotated[int, typer.Option(help="Port for /metrics; 0 picks a free one, -1: none.")] = 9090,
    probe_interval: ProbeIntervalOption = 0.1,
    probe_timeout: ProbeTimeoutOption = 0.25,
    exit_timeout_secs: Annotated[float, typer.Option(help="Grace for calls of Envoy when stopping.", min=0)] = 30.0,
    store: StoreOption = "",
    fleet: FleetOption = "default",
    name: Annotated[
        str, typer.Option(help="With --store: this picker's own name.", show_default="host name and port")
    ] = "",
    advertise: AdvertiseOption = "",
    lease_seconds: LeaseOption = 5.0,
    seed: SeedOption = None,
    limit: LimitOption = None,
    reuse_port: Annotated[
        bool, typer.Option("--reuse-port/--no-reuse-port", help="Let several pickers share the port (SO_REUSEPORT).")
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate: serve Envoy over TLS.")] = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: TlsClientCaOption = None,
    tls_permissive: TlsPermissiveOption = False,
    upstream_ca: UpstreamCaOption = None,
    upstream_cert: UpstreamCertOption = None,
    upstream_key: UpstreamKeyOption = None,
    upstream_server_name: UpstreamServerNameOption = "",
    fleet_key: FleetKeyOption = None,
    accept_unsealed: AcceptUnsealedOption = False,
    log_json: LogJsonOption = False,
) -> None:
    """Choose a worker for each request of an Envoy, which forwards it there. The choice is a gateway's: by load,
    deadline, version and rules; a request that no worker can answer within its deadline is rejected."""
    try:
        host, port = read_listen(listen)
        sources = Sources("pick", upstream or (), upstream_dns or (), upstream_file or (), store)
        key = read_fleet_key(fleet_key)
        tls = read_tls(tls_cert, tls_key, tls_client_ca, tls_permissive, fleet_ca=upstream_ca if store else None)
        settings = GatewaySettings(
            host=host,
            port=port,
            metrics_port=None if metrics_port < 0 else metrics_port,
            upstreams=sources.upstreams,
            dns=sources.dns,
            files=sources.files,
            rules=sources.rules(rules, policy),
            monitoring=MonitorRules(interval=probe_interval, timeout=probe_timeout),
            exit_timeout=exit_timeout_secs,
            reuse_port=reuse_port,
            tls=tls,
            metrics_tls=read_metrics_tls(tls, upstream_ca, upstream_cert, upstream_key, store, tls_permissive),
            upstream_tls=read_upstream_tls(upstream_ca, upstream_cert, upstream_key, upstream_server_name),
            permits_plain=tls_permissive,
            limits=parse_limits(limit or [], max_control_frames_per_second=MAX_CONTROL_FRAMES_PER_SECOND),
            seed=seed,
            internal=internal_callers(key),
        )
        logs.configure(json=log_json)
        membership = GatewayMembership(store, fleet, name, advertise, lease_seconds, key, accept_unsealed)
        health = None if health_port < 0 else health_port
        raise typer.Exit(uvloop.run(_serve(settings, health, membership)))
    except (StartFailed, IsochroneError, OSError) as error:
        typer.echo(f"isochrone pick: {error}", err=True)
        raise typer.Exit(1) from None


async def _serve(settings: GatewaySettings, health_port: int | None, membership: GatewayMembership) -> int:
    server = PickerServer(settings, health_port)
    if membership.store:
        server.make_link = membership.link
    return await server.run()
