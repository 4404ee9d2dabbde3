"""What a worker records of its own work: traces, the access log, the audit log, the flight recorder, and metrics.

It makes each part that the settings ask for, starts them before the process listens, and stops them when nothing is in
flight any more. The service writes to them; the server knows only this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import structlog
from prometheus_client.registry import Collector

from isochrone.errors import FlagError
from isochrone.observe.access_log.writer import STOP_SECONDS, AccessLog
from isochrone.observe.flights.dump import FlightDump
from isochrone.observe.metrics.exposition import Exposition
from isochrone.observe.metrics.gpus import GpuCollector
from isochrone.observe.otlp_metrics.exporter import MetricsExporter
from isochrone.observe.otlp_metrics.settings import missing_package
from isochrone.observe.snapshot import ServerSnapshot
from isochrone.protocol.applications.application import MetricsApplication
from isochrone.protocol.applications.flight_page import WithFlights
from isochrone.secure.audit.audit import Audit
from isochrone.wire.exchange import Application
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.off_loop import in_thread
from isochrone.worker.flights import WorkerFlights
from isochrone.worker.server.failures import StartFailed
from isochrone.worker.server.settings import ServeSettings
from isochrone.worker.tracing.worker_tracing import WorkerTracing

log = structlog.get_logger(__name__)

#: For the export of the last traces when the server stops.
_TRACE_SECONDS = 1.0


class Recording:
    """The recorders of one worker process. On the loop's thread."""

    def __init__(self, settings: ServeSettings, catalog: Catalog, ports: Callable[[], Mapping[str, int]]) -> None:
        self._settings = settings
        self.access_log = None if settings.access_log is None else AccessLog(settings.access_log)
        #: Of control calls, and of requests where the settings say so.
        self.audit = None if settings.audit is None else Audit(settings.audit)
        self.request_audit = self.audit if settings.audit is not None and settings.audit.requests else None
        self.flights: WorkerFlights | None = None
        self._dump: FlightDump | None = None
        if settings.recorder.requests:
            self.flights = WorkerFlights(settings.recorder, catalog, ports)
            if settings.recorder.dump is not None:
                self._dump = FlightDump(self.flights, settings.recorder.dump)
        export = settings.metrics_export
        if export is not None and settings.process[1] > 1:
            export = replace(export, instance=f"{export.instance}.{settings.process[0] + 1}")
        self._exporter = None if export is None else MetricsExporter(export)
        self._gpus: GpuCollector | None = None

    async def start(self, tracing: WorkerTracing) -> None:
        """Start what requests are recorded in. Raises ``StartFailed``."""
        if tracing.problem:
            raise StartFailed(tracing.problem)
        if tracing.exports:
            await in_thread(tracing.start)
        export = self._settings.metrics_export
        if export is not None and (package := missing_package(export)):
            raise StartFailed(f"--metrics-otlp needs the package {package}: pip install isochrone[tracing]")
        if self.access_log is not None:
            try:
                self.access_log.start()
            except OSError as error:
                raise StartFailed(f"--access-log-file: {error}; name a file that can be written") from None
        if self.audit is not None:
            try:
                await in_thread(self.audit.start)
            except OSError as error:
                raise StartFailed(f"--audit: {error}; name a directory that can be written") from None
            except FlagError as error:
                raise StartFailed(error.message) from None
        if self.flights is not None:
            self.flights.start()
        if self._dump is not None:
            self._dump.start()

    async def start_metrics(self, take: Callable[[], ServerSnapshot], *, has_page: bool) -> Exposition:
        """Start what measures and exports; the metrics of the process. ``has_page``: they are also read over HTTP."""
        others: tuple[Collector, ...] = ()
        if self._settings.gpu_metrics and has_page:
            self._gpus = GpuCollector(self._settings.metrics_seconds)
            self._gpus.start()
            others = (self._gpus,)
        exposition = Exposition(take, machine=self._settings.cpu_metrics, others=others)
        if self._exporter is not None:
            await in_thread(self._exporter.start)
        return exposition

    def metrics_page(self, exposition: Exposition) -> Application:
        """The metrics page, and the pages of the flight recorder beside it."""
        return self.with_flights(MetricsApplication(exposition, exposition.take))

    def with_flights(self, application: Application) -> Application:
        return WithFlights(self.flights, application)

    async def export_metrics(self, exposition: Exposition) -> None:
        """Offer the metrics for their export again and again, until it is cancelled; return if they go nowhere."""
        exporter = self._exporter
        while exporter is not None:
            await asyncio.sleep(exporter.settings.seconds)
            try:
                exporter.offer(partial(exposition.families, exposition.take()))
            except Exception as error:
                log.error("metrics could not be read for their export", exc_info=error)

    async def stop(self, tracing: WorkerTracing) -> None:
        """Write what is left of each record, and end the threads. No request is in flight."""
        if self._dump is not None:
            await self._dump.stop()
        if self.flights is not None:
            self.flights.stop()
        if tracing.exports:
            tracing.close()
            await in_thread(partial(tracing.stop, _TRACE_SECONDS))
        if self.access_log is not None:
            await in_thread(partial(self.access_log.stop, STOP_SECONDS))
        if self.audit is not None:
            await in_thread(self.audit.stop)
        if self._exporter is not None:
            await in_thread(partial(self._exporter.stop, STOP_SECONDS))
        if self._gpus is not None:
            await in_thread(self._gpus.stop)
