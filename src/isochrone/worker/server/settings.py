"""What ``isochrone serve`` and ``isochrone.serve`` ask of a worker: values alone, without the worker's code."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from isochrone.models.sources.locations import Location
from isochrone.observe.access_log.settings import AccessLogSettings
from isochrone.observe.flights.settings import RecorderSettings
from isochrone.observe.otlp_metrics.settings import MetricsExport
from isochrone.protocol.access.rules import HeaderRules
from isochrone.secure.access.internal import InternalCallers
from isochrone.secure.audit.settings import AuditSettings
from isochrone.secure.encryption.model_keys import ModelKeys
from isochrone.settings.wire_limits import WireLimits
from isochrone.worker.catalog.load_settings import LoadSettings


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of ``isochrone serve``, named after Triton's flags where it has them."""

    repositories: tuple[Location, ...]
    #: The directory of fetched models; None: no repository is remote.
    model_cache: Path | None = None
    #: Bytes of it; None: 64 GiB or 80 % of the space on its disk, whichever is less.
    model_cache_bytes: int | None = None
    host: str = "0.0.0.0"
    #: None: not served. 0: any free port.
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    metrics_port: int | None = 8002
    #: For health checks alone, without TLS and tokens.
    health_port: int | None = None
    #: "none": load all models at start; "explicit": load ``load_models``, then on request; "poll": load changed files.
    control_mode: str = "none"
    load_models: tuple[str, ...] = ()
    #: Seconds between two scans of the repository in poll mode.
    poll_seconds: float = 15.0
    #: Seconds for in-flight requests when the server stops (Triton's exit-timeout-secs).
    exit_timeout: float = 30.0
    #: The server exits if a model fails to load at start (Triton's exit-on-error).
    exit_on_error: bool = True
    strict_readiness: bool = True
    server_name: str = "isochrone"
    #: Clients may register regions of system shared memory.
    allow_shared_memory: bool = False
    #: The same of CUDA shared memory.
    allow_cuda_shared_memory: bool = False
    #: Load requests may carry files (Triton's ``file:`` parameters): anyone who may load can then run code.
    allow_file_overrides: bool = False
    #: Origins, beside its own, of web pages that may call the server.
    allow_origins: tuple[str, ...] = ()
    #: In a fleet: the token that calls which change the worker must carry; "": none.
    control_token: str = field(default="", repr=False)
    #: Files with the keys and authorities of whom versions must be signed; (): unsigned versions are loaded.
    trusted_signers: tuple[Path, ...] = ()
    #: Of encrypted versions; None: they are not loaded.
    model_keys: ModelKeys | None = None
    #: Without a file system in memory, plain text of encrypted versions may be on a disk.
    model_key_allow_disk: bool = False
    #: Versions that are not encrypted are refused.
    require_encryption: bool = False
    #: Bytes of the response cache; 0: none.
    cache_bytes: int = 0
    #: Services whose port other processes may share (SO_REUSEPORT).
    shared_ports: frozenset[str] = frozenset()
    #: Service → its address, if it differs from ``host``.
    hosts: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    #: For the gRPC port alone; ``tls`` covers it otherwise.
    grpc_tls: ssl.SSLContext | None = None
    #: The access file; None: every caller may do everything, unless the fleet's rules count.
    access: Path | None = None
    #: In a fleet: the rules come from its store; None: they do not. Recognises the fleet's own processes.
    fleet_access: InternalCallers | None = field(default=None, repr=False)
    #: Headers that APIs require, and headers that become parameters.
    rules: HeaderRules = field(default_factory=HeaderRules)
    #: Trace settings at start, by the names of the trace API.
    trace: Mapping[str, list[str]] = field(default_factory=dict)
    #: Which requests are logged, and where; None: none are.
    access_log: AccessLogSettings | None = None
    #: The audit log of control calls, and perhaps of requests; None: nothing is recorded.
    audit: AuditSettings | None = None
    #: Where the figures of the metrics page go beside it; None: nowhere.
    metrics_export: MetricsExport | None = None
    #: Off, to measure what it costs: durations of requests are not counted.
    counts_latencies: bool = True
    #: The number of this process, from 0, among so many that serve as one.
    process: tuple[int, int] = (0, 1)
    loading: LoadSettings = field(default_factory=LoadSettings)
    #: Whether /metrics has the machine's processors and memory.
    cpu_metrics: bool = True
    #: Whether it has the machine's GPUs.
    gpu_metrics: bool = True
    #: Seconds between two readings of the GPUs.
    metrics_seconds: float = 1.0
    limits: WireLimits = field(default_factory=WireLimits)
    recorder: RecorderSettings = field(default_factory=RecorderSettings)
