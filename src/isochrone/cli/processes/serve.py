"""``isochrone serve``: run one worker; its flags are Triton's, and a few of its own."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import structlog
import typer
import uvloop

from isochrone.cli.processes.flags.access import (
    AcceptUnsealedOption,
    AccessOption,
    FleetKeyOption,
    HealthPortOption,
    RequireSecureOption,
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
from isochrone.cli.processes.flags.encryption import (
    AllowDiskOption,
    ModelKeyOption,
    RequireEncryptionOption,
    read_model_keys,
)
from isochrone.cli.processes.flags.recorder import DEFAULT_RECORDER, DumpOption, RecorderOption
from isochrone.cli.processes.flags.repository import (
    CacheConfigOption,
    ModelCacheBytesOption,
    ModelCacheOption,
    model_cache_directory,
    read_cache_bytes,
    read_model_cache_bytes,
    read_repositories,
)
from isochrone.cli.processes.flags.sandbox import (
    AllowOption,
    BestEffortOption,
    MemoryOption,
    SandboxOption,
    TrustOption,
    read_sandbox,
)
from isochrone.cli.processes.flags.tls import TlsClientCaOption, TlsKeyOption, TlsPermissiveOption, read_tls
from isochrone.cli.processes.flags.wire_limits import parse_limits
from isochrone.cli.processes.worker_membership import WorkerMembership
from isochrone.cli.triton.command import TritonCommand, flags_of
from isochrone.cli.triton.command_line import BadFlag
from isochrone.cli.triton.options import configure_logs, with_triton_flags
from isochrone.errors import IsochroneError
from isochrone.models.sources.locations import RepositoryUrl
from isochrone.multiprocess.workers import run_workers
from isochrone.observe.access_log.settings import read_access_log
from isochrone.observe.flights.settings import read_recorder
from isochrone.observe.otlp_metrics.settings import read_metrics_export
from isochrone.protocol.access.origins import read_origins
from isochrone.secure.access.internal import internal_callers
from isochrone.secure.audit.settings import read_audit
from isochrone.secure.fleet_key import read_fleet_key
from isochrone.secure.signing.trust import Trust
from isochrone.settings.wire_limits import WireLimits
from isochrone.stop_signals import stop_signals
from isochrone.worker.server.failures import StartFailed
from isochrone.worker.server.server import Worker
from isochrone.worker.server.settings import ServeSettings

log = structlog.get_logger(__name__)

_LIMITS = WireLimits()

# \b keeps the lines below it as they are.
EPILOG = """
\b
Examples:
  isochrone serve ./models
  isochrone serve ./models --model-control-mode explicit --load-model detector
  isochrone serve ./models --http-port 9000 --grpc-port 9001 --allow-metrics=false
  isochrone serve ./models --cache-config local,size=104857600
  isochrone serve ./models --processes 4
  isochrone serve s3://bucket/models --model-cache /var/cache/models
  isochrone serve ./models --model-control-mode explicit --store sqlite:fleet.db --name cpu-1 --pool cpu

Any Triton client then works unchanged: tritonclient.http on 8000, tritonclient.grpc on 8001, Prometheus on 8002.
Every flag of tritonserver is accepted or refused with the reason: docs/triton-flags.md lists them.
"""


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=TritonCommand, epilog=EPILOG)
def serve(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODELS",
            help="Model repositories in Triton's layout: directories, or s3://, gs://, az:// and https:// URLs.",
            show_default=False,
        ),
    ] = None,
    model_repository: Annotated[
        list[str] | None,
        typer.Option("--model-repository", "--model-store", help="The same, as Triton spells it. May be repeated."),
    ] = None,
    model_cache: ModelCacheOption = None,
    model_cache_bytes: ModelCacheBytesOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    http_port: Annotated[int, typer.Option(help="Port for HTTP; 0 picks a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="Port for gRPC. Each port speaks both protocols.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="Port for /metrics.")] = 8002,
    health_port: HealthPortOption = -1,
    allow_http: Annotated[bool, typer.Option("--allow-http/--no-allow-http", help="Serve HTTP.")] = True,
    allow_grpc: Annotated[bool, typer.Option("--allow-grpc/--no-allow-grpc", help="Serve gRPC.")] = True,
    allow_metrics: Annotated[bool, typer.Option("--allow-metrics/--no-allow-metrics", help="Serve /metrics.")] = True,
    model_control_mode: Annotated[
        str, typer.Option(help="none: load all at start; explicit: on request; poll: on changes of the files.")
    ] = "none",
    load_model: Annotated[
        list[str] | None, typer.Option(help="Model to load at start in explicit mode; * for all.")
    ] = None,
    repository_poll_secs: Annotated[float, typer.Option(help="Seconds between scans in poll mode.", min=0.05)] = 15.0,
    exit_timeout_secs: Annotated[float, typer.Option(help="Grace for in-flight requests when stopping.", min=0)] = 30.0,
    exit_on_error: Annotated[
        bool, typer.Option("--exit-on-error/--no-exit-on-error", help="Exit if a model fails to load at start.")
    ] = True,
    strict_readiness: Annotated[
        bool,
        typer.Option(
            "--strict-readiness/--no-strict-readiness", help="Ready only if every model is ready; off with --store."
        ),
    ] = True,
    server_name: Annotated[
        str, typer.Option(help='Name in the metadata; some tools insist on "triton".')
    ] = "isochrone",
    allow_shared_memory: Annotated[
        bool, typer.Option("--allow-shared-memory/--no-allow-shared-memory", help="Let clients register regions.")
    ] = False,
    allow_cuda_shared_memory: Annotated[
        bool,
        typer.Option(
            "--allow-cuda-shared-memory/--no-allow-cuda-shared-memory", help="Let clients register memory of GPUs."
        ),
    ] = False,
    allow_file_overrides: Annotated[
        bool,
        typer.Option(
            "--allow-file-overrides/--no-allow-file-overrides",
            help="Let load requests bring files along, code among them (Triton's file: parameters).",
        ),
    ] = False,
    require_signatures: Annotated[
        list[Path] | None,
        typer.Option(
            help="Load only versions that these signed: a PEM file with public keys or authorities, or a directory of"
            " such files. May be repeated.",
            metavar="FILE_OR_DIRECTORY",
            show_default="unsigned versions are loaded",
        ),
    ] = None,
    model_key: ModelKeyOption = None,
    require_encryption: RequireEncryptionOption = False,
    model_key_allow_disk: AllowDiskOption = False,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of a page that may use the server from a browser. May be repeated."),
    ] = None,
    sandbox: SandboxOption = None,
    sandbox_best_effort: BestEffortOption = False,
    sandbox_allow: AllowOption = None,
    sandbox_memory: MemoryOption = None,
    trust_model: TrustOption = None,
    cache_config: CacheConfigOption = "",
    max_body_bytes: Annotated[int, typer.Option(help="Largest request body.", min=1)] = _LIMITS.max_body_bytes,
    max_connections: Annotated[int, typer.Option(help="Connections per port.", min=1)] = _LIMITS.max_connections,
    max_streams: Annotated[int, typer.Option(help="HTTP/2 streams per connection.", min=1)] = _LIMITS.max_streams,
    idle_timeout: Annotated[
        float, typer.Option(help="Seconds a connection may be idle.", min=1)
    ] = _LIMITS.idle_timeout,
    head_timeout: Annotated[
        float, typer.Option(help="Seconds for a request's head to arrive.", min=1)
    ] = _LIMITS.head_timeout,
    body_timeout: Annotated[
        float, typer.Option(help="Seconds for a request's body to arrive.", min=1)
    ] = _LIMITS.body_timeout,
    limit: Annotated[
        list[str] | None,
        typer.Option(help="Any other limit of the wire: NAME=VALUE, as in max_headers=64. May be repeated."),
    ] = None,
    reuse_port: Annotated[
        bool,
        typer.Option(
            "--reuse-port/--no-reuse-port",
            help="Let several workers share the ports (SO_REUSEPORT). A load, an unload or a shared-memory region"
            " reaches the one worker that accepted the connection.",
        ),
    ] = False,
    processes: Annotated[
        int, typer.Option(help="Processes that serve as one, on the same ports: for more processor cores.", min=1)
    ] = 1,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate: serve HTTP and gRPC over TLS.")] = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: TlsClientCaOption = None,
    tls_permissive: TlsPermissiveOption = False,
    access: AccessOption = None,
    fleet_key: FleetKeyOption = None,
    accept_unsealed: AcceptUnsealedOption = False,
    require_secure: RequireSecureOption = False,
    store: Annotated[
        str, typer.Option(help="Register in a fleet's store: sqlite:PATH or etcd:http://HOST:2379.", show_default="off")
    ] = "",
    fleet: Annotated[str, typer.Option(help="With --store: the fleet's name.")] = "default",
    name: Annotated[
        str, typer.Option(help="With --store: this worker's own name.", show_default="host name and HTTP port")
    ] = "",
    pool: Annotated[str, typer.Option(help="With --store: the pool it belongs to.", show_default="none")] = "",
    tier: Annotated[str, typer.Option(help="With --store: its tier, as edge or cloud.", show_default="none")] = "",
    device: Annotated[str, typer.Option(help="With --store: what it computes on, as cpu.", show_default="none")] = "",
    region: Annotated[str, typer.Option(help="With --store: its region.", show_default="none")] = "",
    memory: Annotated[int, typer.Option(help="With --store: bytes it may use for models; 0: not stated.", min=0)] = 0,
    lease_seconds: Annotated[
        float, typer.Option(help="With --store: seconds without a heartbeat until it counts as lost.", min=0.5)
    ] = 5.0,
    flight_recorder: RecorderOption = DEFAULT_RECORDER,
    dump_flights: DumpOption = "",
    log_verbose: Annotated[
        int, typer.Option(help="1: also log events of models; 2: also log every request.", min=0)
    ] = 0,
    log_json: Annotated[bool, typer.Option("--log-json/--no-log-json", help="Log lines as JSON.")] = False,
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
) -> None:
    """Serve the models of a repository: Open Inference Protocol over HTTP and gRPC, Triton's ports and extensions."""
    try:
        repositories = read_repositories((models or []) + (model_repository or []))
        if model_control_mode not in ("none", "explicit", "poll"):
            raise StartFailed(f"--model-control-mode: expected none, explicit or poll, given {model_control_mode!r}")
        if load_model and model_control_mode != "explicit":
            raise StartFailed("--load-model needs --model-control-mode explicit")
        if load_model and "*" in load_model and len(load_model) > 1:
            raise StartFailed("--load-model=* loads all models; give it alone")
        key = read_fleet_key(fleet_key)
        file, is_fleet_access = read_access(access, store, key)
        membership = WorkerMembership(
            store,
            fleet,
            name,
            pool,
            tier,
            device,
            region,
            memory,
            lease_seconds,
            tuple(str(each) if isinstance(each, RepositoryUrl) else os.path.abspath(each) for each in repositories),
            key,
            accept_unsealed,
            tls_cert is not None,
            tls_permissive,
        )
        if store and processes > 1:
            raise StartFailed(
                "--processes does not go with --store: each process would be a worker of its own in the fleet; give the"
                " pool more workers in the fleet file instead"
            )
        if health_port >= 0 and processes > 1:
            raise StartFailed("--health-port does not go with --processes; ask the other ports for their health")
        if store and file is not None:
            raise StartFailed(
                "--store and --access FILE: the fleet's controllers could not call this worker; give it --access @fleet"
                " and --fleet-key, so that it follows the fleet's rules"
            )
        if store:
            membership.check(model_control_mode, allow_http=allow_http, shared_port=reuse_port)
        if require_signatures:
            # A mistake in these files ends the start, not the first load.
            Trust(require_signatures)
        settings = ServeSettings(
            repositories=repositories,
            model_cache=model_cache_directory(repositories, model_cache),
            model_cache_bytes=read_model_cache_bytes(model_cache_bytes),
            host=host,
            http_port=http_port if allow_http else None,
            grpc_port=grpc_port if allow_grpc else None,
            metrics_port=metrics_port if allow_metrics else None,
            health_port=health_port if health_port >= 0 else None,
            control_mode=model_control_mode,
            load_models=tuple(load_model or ()),
            poll_seconds=repository_poll_secs,
            exit_timeout=exit_timeout_secs,
            exit_on_error=exit_on_error,
            # In a fleet, a version that fails to load beside those that serve must not take the worker away from them.
            strict_readiness=strict_readiness and not store,
            server_name=server_name,
            allow_shared_memory=allow_shared_memory,
            allow_cuda_shared_memory=allow_cuda_shared_memory,
            allow_file_overrides=allow_file_overrides,
            allow_origins=read_origins(allow_origin or ()),
            control_token=membership.control_token,
            trusted_signers=tuple(Path(os.path.abspath(each)) for each in require_signatures or ()),
            model_keys=read_model_keys(model_key or (), required=require_encryption, allow_disk=model_key_allow_disk),
            model_key_allow_disk=model_key_allow_disk,
            require_encryption=require_encryption,
            cache_bytes=read_cache_bytes(cache_config),
            access_log=read_access_log(access_log, access_log_file, name),
            audit=read_audit(audit, audit_requests, audit_key, audit_keep, audit_redact, name, "worker"),
            metrics_export=read_metrics_export(metrics_otlp, metrics_otlp_seconds, name or socket.gethostname()),
            counts_latencies=latency_histograms,
            recorder=read_recorder(flight_recorder, dump_flights),
            shared_ports=frozenset(("http", "grpc", "metrics")) if reuse_port else frozenset(),
            tls=read_tls(tls_cert, tls_key, tls_client_ca, tls_permissive),
            access=file,
            fleet_access=internal_callers(key) if is_fleet_access else None,
            limits=parse_limits(
                limit or [],
                max_body_bytes=max_body_bytes,
                max_connections=max_connections,
                max_streams=max_streams,
                idle_timeout=idle_timeout,
                head_timeout=head_timeout,
                body_timeout=body_timeout,
            ),
        )
        flags = flags_of(context)
        settings = with_triton_flags(settings, flags)
        log_settings = configure_logs(log_verbose, log_json, flags)
        for warning in flags.warnings:
            log.warning(warning)
        ports = {"http": allow_http, "grpc": allow_grpc, "metrics": allow_metrics}
        check_exposure(
            "this worker",
            {settings.hosts.get(port, settings.host) for port, is_open in ports.items() if is_open},
            tls=settings.tls is not None,
            access=access is not None,
            required=require_secure,
        )
        # A worker that checks callers does not trust its models' code either, unless its operator says so.
        confines = sandbox if sandbox is not None else access is not None or require_secure
        confined, trusted = read_sandbox(
            confines, sandbox_best_effort, sandbox_allow or (), sandbox_memory or (), trust_model or ()
        )
        settings = replace(settings, loading=replace(settings.loading, sandbox=confined, trusted=trusted))

        if processes > 1:
            raise typer.Exit(run_workers(settings, log_settings, processes, _report))

        async def run() -> int:
            try:
                worker = Worker(settings, log_settings)
                if store:
                    keeper = worker.keeper if is_fleet_access else None
                    worker.companions = [membership.link(settings.hosts.get("http", host), keeper)]
                return await worker.run()
            finally:
                _ignore_further_signals()

        status = uvloop.run(run())
        _ignore_further_signals()  # closing the loop restored the handler of SIGINT
        raise typer.Exit(status)
    except (StartFailed, BadFlag, IsochroneError) as error:
        _report(error)
        raise typer.Exit(1) from None


def _report(error: Exception) -> None:
    typer.secho(f"isochrone serve: {error}", fg="red", err=True)


def _ignore_further_signals() -> None:
    """Ignore stop signals while the interpreter exits, some 100 ms: a second Ctrl-C must not change the exit status."""
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
