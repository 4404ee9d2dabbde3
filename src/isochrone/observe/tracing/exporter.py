"""The exporter's thread: takes records from the queue, makes spans and sends them to a collector.

Nobody waits for it: a collector that is away, slow or silent fills the queue, which drops and counts. The thread is a
daemon, so a process ends while an export hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import structlog

from isochrone.clock import SECOND, now_ns
from isochrone.observe.tracing.identities import new_span_id
from isochrone.observe.tracing.record import TraceQueue
from isochrone.observe.tracing.settings import ExportSettings
from isochrone.observe.tracing.spans import Span

log = structlog.get_logger(__name__)

#: Between two looks at the length of the queue.
_TICK_SECONDS: Final = 0.1
#: Between two log lines about failed exports.
_QUIET_NS: Final = 60 * SECOND
#: For the end of an export that hangs after its connection was closed.
_CLOSE_SECONDS: Final = 0.2


class Sink(Protocol):
    """Where spans go; ``otlp`` has the real one."""

    def export(self, spans: list[Span]) -> None:
        """Raises if they did not arrive."""
        ...

    def close(self) -> None:
        """From any thread; ends an export that is in progress, if that is possible."""
        ...


#: The spans of a record: its values, ns from the monotonic clock to the epoch, and what makes span ids.
SpansOf = Callable[[tuple[Any, ...], int, Callable[[], int]], Iterable[Span]]


class TraceExporter:
    """Exports the records of a queue."""

    def __init__(
        self, queue: TraceQueue, settings: ExportSettings, sink: Callable[[], Sink], spans_of: SpansOf
    ) -> None:
        """``sink`` is called on the thread: it may import much."""
        self._queue = queue
        self._settings = settings
        self._open = sink
        self._spans_of = spans_of
        self._sink: Sink | None = None
        self._stopping = threading.Event()
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trace-exporter", daemon=True)
        #: Traces whose export failed; they are lost.
        self.failed = 0
        self._last_complaint = -_QUIET_NS

    def start(self) -> None:
        """Returns when the sink is open, so that its imports do not delay requests."""
        self._thread.start()
        self._opened.wait()

    def stop(self, seconds: float) -> None:
        """Exports what is left, for at most so long."""
        self._stopping.set()
        if not self._thread.is_alive():
            return
        self._thread.join(seconds)
        if self._thread.is_alive() and self._sink is not None:
            # On a thread, since closing may wait for the export that hangs.
            threading.Thread(target=self._sink.close, name="trace-closer", daemon=True).start()
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            self._sink = self._open()
        except Exception as error:
            log.error("traces cannot be exported", error=f"{type(error).__name__}: {error}")
            return
        finally:
            self._opened.set()
        waited = 0.0
        while not self._stopping.wait(_TICK_SECONDS):
            waited += _TICK_SECONDS
            is_due = waited * 1000 >= self._settings.bsp_schedule_delay
            if is_due or len(self._queue) >= self._settings.bsp_max_export_batch_size:
                waited = 0.0
                self._export_all()
        self._export_all()
        self._sink.close()

    def _export_all(self) -> None:
        """What is in the queue now: an export that takes long must not keep a stop from being seen."""
        assert self._sink is not None
        left = len(self._queue)
        while left > 0:
            records = self._queue.take(min(left, self._settings.bsp_max_export_batch_size))
            left -= len(records)
            offset = time.time_ns() - now_ns()
            try:
                self._sink.export([span for record in records for span in self._spans_of(record, offset, new_span_id)])
            except Exception as error:
                self._complain(len(records), error)
                if self._stopping.is_set():
                    # The collector is away: the others would take as long, each.
                    self.failed += left
                    return
            if not records:
                return

    def _complain(self, traces: int, error: Exception) -> None:
        self.failed += traces
        now = now_ns()
        if now - self._last_complaint >= _QUIET_NS:
            self._last_complaint = now
            log.warning(
                "traces could not be exported; is the collector reachable?",
                url=self._settings.url,
                protocol=self._settings.protocol,
                error=f"{type(error).__name__}: {error}",
                traces=self.failed,
            )
