"""What a gateway records of its own work: traces, the access log, the audit log, the flight recorder, and the export of
metrics.

It makes each part that the settings ask for and gives it to the gateway, starts them before the process listens, and
stops them when nothing is in flight any more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import structlog

from isochrone.clock import now_ns
from isochrone.errors import FlagError
from isochrone.gateway.access_lines import GatewayAccessLines
from isochrone.gateway.audit import GatewayAudit
from isochrone.gateway.flights.reading import GatewayFlights
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.metrics import GatewayMetricsApplication
from isochrone.gateway.server.failures import StartFailed
from isochrone.gateway.server.settings import GatewaySettings
from isochrone.gateway.tracing import GatewayTrace
from isochrone.observe.access_log.writer import STOP_SECONDS, AccessLog
from isochrone.observe.flights.dump import FlightDump
from isochrone.observe.otlp_metrics.exporter import MetricsExporter
from isochrone.observe.otlp_metrics.settings import missing_package as missing_metrics_package
from isochrone.observe.tracing.otlp import missing_package
from isochrone.secure.audit.audit import Audit

log = structlog.get_logger(__name__)

#: Between two looks for the end of a minute of which the slowest are traced.
_SLOWEST_SECONDS = 1.0
#: For the export of the last traces when the gateway stops.
_TRACE_SECONDS = 1.0


class Recording:
    """The recorders of one gateway process. On the loop's thread."""

    def __init__(self, settings: GatewaySettings, gateway: Gateway, ports: Callable[[], Mapping[str, int]]) -> None:
        self._settings = settings
        #: They run until the server cancels them.
        self.tasks: list[asyncio.Task[None]] = []
        self._tracing: GatewayTrace | None = None
        if settings.export is not None:
            sends_all = settings.traces_all_attempts
            self._tracing = GatewayTrace(settings.export, settings.trace_rate, sends_all=sends_all)
        gateway.tracing = self._tracing
        self.access_log = None if settings.access_log is None else AccessLog(settings.access_log)
        if self.access_log is not None:
            gateway.access_lines = GatewayAccessLines(self.access_log)
        self._audit = None if settings.audit is None else Audit(settings.audit)
        gateway.change_audit = self._audit
        if self._audit is not None and self._audit.settings.requests:
            gateway.audit = GatewayAudit(self._audit)
        self._exporter: MetricsExporter | None = None
        self.flights: GatewayFlights | None = None
        self._dump: FlightDump | None = None
        if settings.recorder.requests:
            self.flights = GatewayFlights(settings.recorder, gateway.fleet, ports)
            gateway.flights = self.flights.recording
            gateway.fleet.on_event = self.flights.events.add
            if settings.recorder.dump is not None:
                self._dump = FlightDump(self.flights, settings.recorder.dump)

    async def start(self) -> None:
        """Start what requests are recorded in. Raises ``StartFailed``."""
        export = self._settings.export
        if export is not None and (package := missing_package(export)):
            raise StartFailed(
                f"--trace-config mode=opentelemetry needs the package {package}: pip install isochrone[tracing]"
            )
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.start)
            self.tasks.append(asyncio.ensure_future(self._look_for_slowest(self._tracing)))
        if self.access_log is not None:
            try:
                self.access_log.start()
            except OSError as error:
                raise StartFailed(f"--access-log-file: {error}; name a file that can be written") from None
        if self._audit is not None:
            try:
                await asyncio.to_thread(self._audit.start)
            except OSError as error:
                raise StartFailed(f"--audit: {error}; name a directory that can be written") from None
            except FlagError as error:
                raise StartFailed(error.message) from None
        if self.flights is not None:
            self.flights.start()
        if self._dump is not None:
            self._dump.start()

    async def start_export(self, page: GatewayMetricsApplication, *, is_one_of_many: bool) -> None:
        """Export what the metrics page has, if the settings say so. ``is_one_of_many``: other processes do so too."""
        export = self._settings.metrics_export
        if export is None:
            return
        if package := missing_metrics_package(export):
            raise StartFailed(f"--metrics-otlp needs the package {package}: pip install isochrone[tracing]")
        if is_one_of_many:
            export = replace(export, instance=f"{export.instance}.{os.getpid()}")
        self._exporter = MetricsExporter(export)
        await asyncio.to_thread(self._exporter.start)
        self.tasks.append(asyncio.ensure_future(self._export(self._exporter, page)))

    async def _look_for_slowest(self, tracing: GatewayTrace) -> None:
        while True:
            await asyncio.sleep(_SLOWEST_SECONDS)
            tracing.tick(now_ns())

    async def _export(self, exporter: MetricsExporter, page: GatewayMetricsApplication) -> None:
        while True:
            await asyncio.sleep(exporter.settings.seconds)
            try:
                families = await page.families()
            except Exception as error:
                log.error("metrics could not be read for their export", exc_info=error)
            else:
                exporter.offer(partial(iter, families))

    async def stop(self) -> None:
        """Write what is left of each record, and end the threads. No request is in flight."""
        if self._dump is not None:
            await self._dump.stop()
        if self.flights is not None:
            self.flights.stop()
        if self._tracing is not None:
            self._tracing.close()
            await asyncio.to_thread(self._tracing.stop, _TRACE_SECONDS)
        if self.access_log is not None:
            await asyncio.to_thread(self.access_log.stop, STOP_SECONDS)
        if self._audit is not None:
            await asyncio.to_thread(self._audit.stop)
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.stop, STOP_SECONDS)
