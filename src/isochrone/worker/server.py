"""The worker process: listeners, models, signals.

Start: listen (live, not ready), load and warm the models, become ready, start the companions. SIGTERM: stop the
companions, report not ready, stop accepting, finish in-flight requests within the grace period, free the models, exit
0.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
from prometheus_client.registry import Collector

from isochrone.build_info import IS_COMPILED
from isochrone.clock import now_ns
from isochrone.errors import FetchFailed, FlagError, IsochroneError, NotFound
from isochrone.models.repository.encrypted.copies import DecryptedVersions
from isochrone.models.repository.layout import EXPECTED
from isochrone.models.repository.repository import Repository
from isochrone.models.repository.signed.copies import VerifiedCopies
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.models.sources.locations import Location
from isochrone.observe.access_log.settings import AccessLogSettings
from isochrone.observe.access_log.writer import STOP_SECONDS, AccessLog
from isochrone.observe.flights.dump import FlightDump
from isochrone.observe.flights.settings import RecorderSettings
from isochrone.observe.logs import Settings as LogSettings
from isochrone.observe.metrics.exposition import Exposition
from isochrone.observe.metrics.gpus import GpuCollector
from isochrone.observe.otlp_metrics.exporter import MetricsExporter
from isochrone.observe.otlp_metrics.settings import MetricsExport, missing_package
from isochrone.observe.snapshot import ServerSnapshot
from isochrone.open_files import raise_file_limit
from isochrone.protocol.access.needs import needed_by, needed_by_page
from isochrone.protocol.access.rules import HeaderRules
from isochrone.protocol.applications.application import ByPath, MetricsApplication, ProtocolApplication, SameOrigin
from isochrone.protocol.applications.authenticated import Authenticated
from isochrone.protocol.applications.flight_page import WithFlights
from isochrone.protocol.applications.health_page import COMMITTED, LIVE, READY, HealthPage
from isochrone.protocol.services.service import InferenceService
from isochrone.secure.access.internal import InternalCallers
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.secure.audit.audit import Audit
from isochrone.secure.audit.settings import AuditSettings
from isochrone.secure.encryption.model_keys import ModelKeys
from isochrone.settings.wire_limits import WireLimits
from isochrone.stop_signals import stop_signals
from isochrone.wire.exchange import Application
from isochrone.wire.listening.listener import Listener
from isochrone.wire.listening.listeners import Listeners
from isochrone.worker.backends.python.triton.completion import completed_by_model
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_parameters import LoadParameters
from isochrone.worker.catalog.load_settings import LoadSettings
from isochrone.worker.catalog.off_loop import in_thread
from isochrone.worker.flights import WorkerFlights
from isochrone.worker.response_cache import ResponseCache
from isochrone.worker.service import WorkerService

log = structlog.get_logger(__name__)

#: The longest time that a thread waits for the interpreter; the default of 5 ms would add to tail latency.
_SWITCH_INTERVAL = 0.0001
_TICK = 0.1
#: For the export of the last traces when the server stops.
_TRACE_SECONDS = 1.0


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


def _decrypting(settings: ServeSettings) -> DecryptedVersions | None:
    if settings.model_keys is None:
        return None
    return DecryptedVersions(
        settings.model_keys, allow_disk=settings.model_key_allow_disk, required=settings.require_encryption
    )


class StartFailed(Exception):
    """The server cannot start; the message names the remedy."""


class PortTaken(StartFailed):
    """A port cannot be listened on."""

    def __init__(self, service: str, host: str, port: int, reason: str) -> None:
        self.service, self.host, self.port, self.reason = service, host, port, reason
        super().__init__(
            f"cannot listen on {host}:{port} for {service}: {reason}; choose another with --{service}-port"
        )


class Companion(Protocol):
    """A task beside the worker while it accepts requests, such as its registration with a fleet."""

    async def start(self, ports: Mapping[str, int]) -> None:
        """The worker is ready; ``ports`` are by service."""
        ...

    def is_complete(self, served: Mapping[tuple[str, str], str]) -> bool:
        """Whether the worker serves all that it should, as far as the companion knows. ``served``: digests, by model
        and version."""
        ...

    async def stop(self) -> None:
        """The worker is about to stop; it accepts requests until this returns."""
        ...


class GroupMember(Protocol):
    """The place of a process among several that serve as one (``isochrone.multiprocess``)."""

    #: The path of a Unix-domain socket for this process's own calls and metrics, without the others.
    private_socket: str
    #: Whether the public ports accept connections before the models are loaded.
    listens_at_once: bool

    def share(self, service: InferenceService) -> InferenceService:
        """The service for the public ports: its control calls reach every process."""
        ...

    def start(self, is_ready: Callable[[], bool]) -> None:
        """The process listens on its private socket; ``is_ready`` is of this process alone."""
        ...

    async def join(self) -> None:
        """Return when this process has every control call in force. Raises ``IsochroneError``."""
        ...

    def ready(self) -> None: ...

    def stopping(self) -> None: ...

    async def stopped(self) -> None: ...


class Worker:
    """One worker process."""

    def __init__(
        self,
        settings: ServeSettings,
        log_settings: LogSettings,
        companions: Sequence[Companion] = (),
        group: GroupMember | None = None,
        repository: Repository | None = None,
    ) -> None:
        """``repository`` stands in for that of the settings: for models that are not in files."""
        self.settings = settings
        self.companions = companions
        self._group = group
        cache = ResponseCache(settings.cache_bytes) if settings.cache_bytes else None
        sandbox = settings.loading.sandbox
        # A confined model that loads models would choose what runs, and unloads those of others.
        may_load = settings.control_mode == "explicit" and sandbox is None
        loading = replace(settings.loading, models_may_load=may_load)
        repository = repository or Repository(
            settings.repositories,
            loading.config_name,
            loading.assumed_batch_sizes,
            namespacing=loading.namespacing,
            cache=ModelCache(settings.model_cache, settings.model_cache_bytes) if settings.model_cache else None,
            self_completion=partial(completed_by_model, sandbox=sandbox),
            links_stay=sandbox is not None,
            verified=VerifiedCopies(settings.trusted_signers) if settings.trusted_signers else None,
            decrypting=_decrypting(settings),
        )
        self.catalog = Catalog(repository, cache, settings.exit_timeout, loading)
        self._access_log = None if settings.access_log is None else AccessLog(settings.access_log)
        self.keeper: AccessKeeper | None = None
        if settings.access is not None or settings.fleet_access is not None:
            self.keeper = AccessKeeper(settings.access, internal=settings.fleet_access)
        self._audit = None if settings.audit is None else Audit(settings.audit)
        self.service = WorkerService(
            self.catalog,
            log_settings,
            server_name=settings.server_name,
            allow_shared_memory=settings.allow_shared_memory,
            allow_cuda_shared_memory=settings.allow_cuda_shared_memory,
            allow_control=settings.control_mode == "explicit",
            strict_readiness=settings.strict_readiness,
            allow_file_overrides=settings.allow_file_overrides,
            control_token=settings.control_token,
            trace=settings.trace,
            process=settings.process,
            access_log=self._access_log,
            audit=self._audit if settings.audit is not None and settings.audit.requests else None,
            counts_latencies=settings.counts_latencies,
            is_complete=self._is_complete,
        )
        export = settings.metrics_export
        if export is not None and settings.process[1] > 1:
            export = replace(export, instance=f"{export.instance}.{settings.process[0] + 1}")
        self._metrics_exporter = None if export is None else MetricsExporter(export)
        self.ports: dict[str, int] = {}
        self._flights: WorkerFlights | None = None
        self._dump: FlightDump | None = None
        if settings.recorder.requests:
            self._flights = self.service.flights = WorkerFlights(settings.recorder, self.catalog, lambda: self.ports)
            if settings.recorder.dump is not None:
                self._dump = FlightDump(self._flights, settings.recorder.dump)
        self._listeners = Listeners(settings.limits)
        #: Not among the others: its connections are no clients'.
        self._private = Listeners(settings.limits.between_processes()) if group is not None else None
        self._reserved: list[Listener] = []
        self._gpus: GpuCollector | None = None
        self._stop = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []

    def request_stop(self) -> None:
        """Makes ``run`` stop the worker and return. On the loop's thread."""
        self._stop.set()

    async def run(self, *, on_signals: bool = True) -> int:
        """Serves until a stop signal or ``request_stop``; returns the exit status of the process.

        ``on_signals`` is for the main thread, the only one that can receive them.
        """
        loop = asyncio.get_running_loop()
        for number in stop_signals() if on_signals else ():
            loop.add_signal_handler(number, self._stop.set)
        if on_signals and self._access_log is not None and self._access_log.reopens_by_signal():
            loop.add_signal_handler(signal.SIGHUP, self._access_log.reopen)
        starting = asyncio.ensure_future(self.start())
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            # A model that hangs while it loads must not prevent the process from stopping.
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                await stopping
        finally:
            for task in (starting, stopping):
                task.cancel()
            ended, _ = await asyncio.gather(starting, stopping, return_exceptions=True)
            # The caller prints the reason; a server that never served need not log that it stops.
            await self.stop(quiet=isinstance(ended, StartFailed))
        return 0

    async def start(self) -> None:
        sys.setswitchinterval(_SWITCH_INTERVAL)
        raise_file_limit()
        if self._group is None and self.settings.shared_ports and self.settings.control_mode == "explicit":
            log.warning(
                "a load, an unload or a shared-memory region reaches only one of the workers that share a port; give"
                " each worker a port of its own behind a gateway to reach them all",
                shared=sorted(self.settings.shared_ports),
            )
        if self.service.tracing.problem:
            raise StartFailed(self.service.tracing.problem)
        if self.service.tracing.exports:
            await in_thread(self.service.tracing.start)
        export = self.settings.metrics_export
        if export is not None and (package := missing_package(export)):
            raise StartFailed(f"--metrics-otlp needs the package {package}: pip install isochrone[tracing]")
        if self._access_log is not None:
            try:
                self._access_log.start()
            except OSError as error:
                raise StartFailed(f"--access-log-file: {error}; name a file that can be written") from None
        if self._audit is not None:
            try:
                await in_thread(self._audit.start)
            except OSError as error:
                raise StartFailed(f"--audit: {error}; name a directory that can be written") from None
            except FlagError as error:
                raise StartFailed(error.message) from None
        self.catalog.watchdog.start()
        if self._flights is not None:
            self._flights.start()
            self._listeners.watch_lag(self._flights.events.stalled)
        if self._dump is not None:
            self._dump.start()
        await self._listen()
        await self._load_models()
        if self._group is not None:
            try:
                await self._group.join()
            except IsochroneError as error:
                raise StartFailed(f"cannot join the other processes: {error}") from None
        # Objects of the start-up live as long as the process: full collections skip them (some 10 ms).
        gc.collect()
        gc.freeze()
        self.service.accepting = True
        self._background.append(asyncio.ensure_future(self._tick()))
        if self.settings.control_mode == "poll":
            self._background.append(asyncio.ensure_future(self._poll()))
        for listener in self._reserved:
            await listener.accept()
        if self._group is None:
            log.info("ready", compiled=IS_COMPILED, **self.ports)
        else:
            self._group.ready()
        for companion in self.companions:
            await companion.start(self.ports)

    async def _listen(self) -> None:
        settings = self.settings
        group = self._group
        service = self.service if group is None else group.share(self.service)
        application = ProtocolApplication(service, settings.limits.max_body_bytes, settings.rules, self._audit)
        others: tuple[Collector, ...] = ()
        if settings.gpu_metrics and (settings.metrics_port is not None or group is not None):
            self._gpus = GpuCollector(settings.metrics_seconds)
            self._gpus.start()
            others = (self._gpus,)
        exposition = Exposition(self._snapshot, machine=settings.cpu_metrics, others=others)
        if self._metrics_exporter is not None:
            await in_thread(self._metrics_exporter.start)
            self._background.append(asyncio.ensure_future(self._export_metrics(self._metrics_exporter, exposition)))
        metrics = WithFlights(self._flights, MetricsApplication(exposition, self._snapshot))
        if group is not None and self._private is not None:
            limit = settings.limits.between_processes().max_body_bytes
            own = WithFlights(self._flights, ByPath({b"/metrics": metrics}, ProtocolApplication(self.service, limit)))
            await self._private.add(own, None).start_unix(group.private_socket)
            group.start(self.service.is_ready)
        accepting = group is None or group.listens_at_once
        if self.keeper is not None:
            await self.keeper.start()
        health = HealthPage({LIVE: service.is_live, READY: service.is_ready, COMMITTED: self.service.is_committed})
        tls = {"http": settings.tls, "grpc": settings.grpc_tls or settings.tls, "metrics": settings.tls}
        for name, port, served in (
            ("http", settings.http_port, application),
            ("grpc", settings.grpc_port, application),
            ("metrics", settings.metrics_port, metrics),
            ("health", settings.health_port, health),
        ):
            if port is None:
                continue
            host = settings.hosts.get(name, settings.host)
            behind: Application = served
            if self.keeper is not None and name != "health":
                need = needed_by_page if name == "metrics" else needed_by
                behind = Authenticated(
                    served, self.keeper, settings.limits.max_body_bytes, need, takes_attestations=True
                )
            guarded = SameOrigin(behind, settings.allow_origins)
            listener = self._listeners.add(
                guarded, tls.get(name), settings.limits.of_health_checks() if name == "health" else None
            )
            listener.turn.stage = self.catalog.stage
            self.catalog.stage.flushes.append(listener.turn.flush)
            try:
                shared = name in settings.shared_ports
                self.ports[name] = await listener.start(host, port, reuse_port=shared, accepting=accepting)
                if not accepting:
                    self._reserved.append(listener)
            except OSError as error:
                raise PortTaken(name, host, port, error.strerror or str(error)) from None
            if accepting:
                log.info("listening", service=name, host=host, port=self.ports[name])

    async def _load_models(self) -> None:
        settings = self.settings
        try:
            entries = await self.catalog.scan()
        except FetchFailed as error:
            if settings.control_mode != "explicit" or settings.load_models:
                raise StartFailed(str(error)) from None
            # A fleet's worker says for each model why it cannot be loaded, and loads it when the store is back.
            log.error("the models cannot be listed", error=str(error))
            return
        except IsochroneError as error:
            raise StartFailed(str(error)) from None
        if settings.control_mode == "none" and (missing := self.catalog.repository.missing()):
            # Nothing would ever be loaded from it, as from a directory that is not there.
            raise StartFailed(f"model repository {missing[0]} has no files; expected {EXPECTED}")
        if not entries:
            log.warning(
                f"no models in the repository; expected {EXPECTED}", repositories=[*map(str, settings.repositories)]
            )
        names = list(entries)
        if settings.control_mode == "explicit":
            names = list(entries) if "*" in settings.load_models else list(settings.load_models)
        problems = {name: entries[name].problem for name in names if name in entries}
        failed: list[str] = []
        for name, problem in problems.items():
            if problem is not None:
                self.catalog.note_failure(name, (), problem)
                failed.append(name)
        requested = {name: LoadParameters() for name in names if problems.get(name) is None}
        for name, reason in (await self.catalog.load_all(requested)).items():
            if isinstance(reason, NotFound):
                # The catalog does not log a missing model, which the index does not list.
                log.error("model failed to load", model=name, error=str(reason))
            if name in requested:
                failed.append(name)
        if failed and settings.exit_on_error:
            raise StartFailed(
                f"models failed to load: {', '.join(failed)}; the log above says why"
                " (--exit-on-error=false serves the others)"
            )

    def _is_complete(self) -> bool:
        served = {(each.model_name, each.model_version): each.digest for each in self.catalog.all_versions()}
        return all(companion.is_complete(served) for companion in self.companions)

    def _snapshot(self) -> ServerSnapshot:
        return self.service.snapshot(self._listeners.snapshot())

    async def _tick(self) -> None:
        """Checks for stuck runs ten times a second, and for the end of a traced minute."""
        while True:
            await asyncio.sleep(_TICK)
            try:
                self.catalog.check_stuck()
                self.service.tracing.tick(now_ns())
            except Exception as error:
                # The next look must come, for all models.
                log.error("a look for stuck runs failed", exc_info=error)

    async def _export_metrics(self, exporter: MetricsExporter, exposition: Exposition) -> None:
        while True:
            await asyncio.sleep(exporter.settings.seconds)
            try:
                exporter.offer(partial(exposition.families, self._snapshot()))
            except Exception as error:
                log.error("metrics could not be read for their export", exc_info=error)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.settings.poll_seconds)
            await self.catalog.poll()

    async def stop(self, *, quiet: bool = False) -> None:
        """Finishes in-flight requests within the grace period, then closes connections. ``quiet``: no log lines."""
        if self.service.stopping:
            return
        for problem in await asyncio.gather(*(each.stop() for each in self.companions), return_exceptions=True):
            if problem is not None:
                log.error("a companion of the worker failed to stop", error=str(problem))
        self.service.begin_stop()
        self.catalog.repository.close()
        if self._group is not None:
            self._group.stopping()
        if not quiet:
            log.info("stopping", in_flight=self.service.in_flight, grace_seconds=self.settings.exit_timeout)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        started = now_ns()
        cut = await self._listeners.stop(self.settings.exit_timeout)
        if self.keeper is not None:
            await self.keeper.stop()
        if cut:
            log.warning("connections were closed after the grace period", connections=cut)
        left = max(1.0, self.settings.exit_timeout - (now_ns() - started) / 1e9)
        await self.catalog.close(left)
        await in_thread(self.catalog.repository.remove_copies)
        self.catalog.watchdog.stop()
        if self._dump is not None:
            await self._dump.stop()
        if self._flights is not None:
            self._flights.stop()
        if self.service.shared_memory is not None:
            self.service.shared_memory.close()
        if self.service.tracing.exports:
            self.service.tracing.close()
            await in_thread(partial(self.service.tracing.stop, _TRACE_SECONDS))
        if self._access_log is not None:
            await in_thread(partial(self._access_log.stop, STOP_SECONDS))
        if self._audit is not None:
            await in_thread(self._audit.stop)
        if self._metrics_exporter is not None:
            await in_thread(partial(self._metrics_exporter.stop, STOP_SECONDS))
        if self._gpus is not None:
            await in_thread(self._gpus.stop)
        if self._group is not None and self._private is not None:
            await self._group.stopped()
            await self._private.stop(0)
        if not quiet:
            log.info("stopped")
