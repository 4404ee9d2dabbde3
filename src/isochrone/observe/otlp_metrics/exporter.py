"""The thread that exports figures: nobody waits for it, and a collector that is away or hangs costs this thread alone.

The event loop offers what a page would be made of; while an export is under way, the newest offer waits and older ones
are forgotten: figures are cumulative.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import structlog
from prometheus_client.core import Metric

from isochrone.clock import now_ns
from isochrone.observe.otlp_metrics.figures import Figure, figures_of
from isochrone.observe.otlp_metrics.settings import MetricsExport
from isochrone.observe.otlp_metrics.sink import MetricsSink
from isochrone.observe.sparing import Sparing

log = structlog.get_logger(__name__)

#: For the last figures when a server stops.
STOP_SECONDS: Final = 1.0
#: Makes the families of a page; called on the thread.
Families = Callable[[], Iterable[Metric]]


class Sink(Protocol):
    """Where figures go; ``sink`` has the real one."""

    def export(self, figures: list[Figure]) -> None: ...

    def close(self) -> None: ...


class MetricsExporter:
    """Exports what it is offered."""

    def __init__(self, settings: MetricsExport, sink: Callable[[MetricsExport], Sink] = MetricsSink) -> None:
        self.settings = settings
        self._open = sink
        self._offered: Families | None = None
        self._due = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="metrics-exporter", daemon=True)
        self._complaints = Sparing()
        #: Exports that arrived, and that did not.
        self.exported = self.failed = 0

    def start(self) -> None:
        self._thread.start()

    def offer(self, families: Families) -> None:
        """Figures of now. Returns at once."""
        self._offered = families
        self._due.set()

    def stop(self, seconds: float) -> None:
        """Exports the last offer, for at most so long."""
        self._stopping = True
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            sink = self._open(self.settings)
        except Exception as error:
            log.error("metrics cannot be exported", error=f"{type(error).__name__}: {error}")
            return
        while True:
            self._due.wait()
            self._due.clear()
            families, self._offered = self._offered, None
            if families is not None:
                self._export(sink, families)
            if self._stopping and self._offered is None:
                break
        sink.close()

    def _export(self, sink: Sink, families: Families) -> None:
        try:
            sink.export(figures_of(families()))
            self.exported += 1
        except Exception as error:
            self.failed += 1
            if self._complaints.lets_through(now_ns()) is not None:
                log.warning(
                    "metrics could not be exported; is the collector reachable?",
                    url=self.settings.url,
                    protocol=self.settings.protocol,
                    error=f"{type(error).__name__}: {error}",
                    exports=self.failed,
                )
