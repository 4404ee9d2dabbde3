"""The worker process: listeners, models, signals.

Start: listen (live, not ready), load and warm the models, become ready, start the companions. SIGTERM: stop the
companions, report not ready, stop accepting, finish in-flight requests within the grace period, free the models, exit
0.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog

from isochrone.build_info import IS_COMPILED
from isochrone.clock import now_ns
from isochrone.errors import IsochroneError
from isochrone.models.repository.encrypted.copies import DecryptedVersions
from isochrone.models.repository.repository import Repository
from isochrone.models.repository.signed.copies import VerifiedCopies
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.observe.logs import Settings as LogSettings
from isochrone.observe.snapshot import ServerSnapshot
from isochrone.open_files import raise_file_limit
from isochrone.protocol.access.needs import needed_by, needed_by_page
from isochrone.protocol.applications.application import ByPath, ProtocolApplication, SameOrigin
from isochrone.protocol.applications.authenticated import Authenticated
from isochrone.protocol.applications.health_page import COMMITTED, LIVE, READY, HealthPage
from isochrone.protocol.services.service import InferenceService
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.stop_signals import stop_signals
from isochrone.wire.exchange import Application
from isochrone.wire.listening.listener import Listener
from isochrone.wire.listening.listeners import Listeners
from isochrone.worker.backends.python.triton.completion import completed_by_model
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.off_loop import in_thread
from isochrone.worker.catalog.polling import poll
from isochrone.worker.response_cache import ResponseCache
from isochrone.worker.server.failures import PortTaken, StartFailed
from isochrone.worker.server.initial_models import load_initial_models
from isochrone.worker.server.recording import Recording
from isochrone.worker.server.settings import ServeSettings
from isochrone.worker.service import WorkerService

log = structlog.get_logger(__name__)

#: The longest time that a thread waits for the interpreter; the default of 5 ms would add to tail latency.
_SWITCH_INTERVAL = 0.0001
_TICK = 0.1


def _decrypting(settings: ServeSettings) -> DecryptedVersions | None:
    if settings.model_keys is None:
        return None
    return DecryptedVersions(
        settings.model_keys, allow_disk=settings.model_key_allow_disk, required=settings.require_encryption
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
        self.ports: dict[str, int] = {}
        self._recording = Recording(settings, self.catalog, lambda: self.ports)
        self.keeper: AccessKeeper | None = None
        if settings.access is not None or settings.fleet_access is not None:
            self.keeper = AccessKeeper(settings.access, internal=settings.fleet_access)
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
            access_log=self._recording.access_log,
            audit=self._recording.request_audit,
            counts_latencies=settings.counts_latencies,
            is_complete=self._is_complete,
        )
        self.service.flights = self._recording.flights
        self._listeners = Listeners(settings.limits)
        #: Not among the others: its connections are no clients'.
        self._private = Listeners(settings.limits.between_processes()) if group is not None else None
        self._reserved: list[Listener] = []
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
        access_log = self._recording.access_log
        if on_signals and access_log is not None and access_log.reopens_by_signal():
            loop.add_signal_handler(signal.SIGHUP, access_log.reopen)
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
        await self._recording.start(self.service.tracing)
        if self._recording.flights is not None:
            self._listeners.watch_lag(self._recording.flights.events.stalled)
        self.catalog.watchdog.start()
        await self._listen()
        await load_initial_models(self.catalog, self.settings)
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
        application = ProtocolApplication(
            service, settings.limits.max_body_bytes, settings.rules, self._recording.audit
        )
        has_page = settings.metrics_port is not None or group is not None
        exposition = await self._recording.start_metrics(self._snapshot, has_page=has_page)
        self._background.append(asyncio.ensure_future(self._recording.export_metrics(exposition)))
        metrics = self._recording.metrics_page(exposition)
        if group is not None and self._private is not None:
            limit = settings.limits.between_processes().max_body_bytes
            own = ByPath({b"/metrics": metrics}, ProtocolApplication(self.service, limit))
            await self._private.add(self._recording.with_flights(own), None).start_unix(group.private_socket)
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
                    served,
                    self.keeper,
                    settings.limits.max_body_bytes,
                    need,
                    takes_attestations=True,
                    audit=self._recording.audit,
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

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.settings.poll_seconds)
            await poll(self.catalog)

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
        if self.service.shared_memory is not None:
            self.service.shared_memory.close()
        await self._recording.stop(self.service.tracing)
        if self._group is not None and self._private is not None:
            await self._group.stopped()
            await self._private.stop(0)
        if not quiet:
            log.info("stopped")
