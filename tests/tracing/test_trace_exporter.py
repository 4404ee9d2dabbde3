"""The exporter's thread: what it takes, what it counts, and that nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from traced_requests import request

from isochrone.clock import now_ns
from isochrone.observe.tracing.exporter import TraceExporter
from isochrone.observe.tracing.record import TraceQueue
from isochrone.observe.tracing.settings import ExportSettings
from isochrone.observe.tracing.spans import Span, spans_of
from isochrone.observe.tracing.tail_sampling import TraceShare
from isochrone.worker.tracing.model_trace import ModelTrace

SOON = ExportSettings(bsp_schedule_delay=1, bsp_max_export_batch_size=4)


class ListSink:
    """Keeps what it gets; may refuse, or hang until it is closed."""

    def __init__(self, *, refuses: bool = False, hangs: bool = False) -> None:
        self.exports: list[list[Span]] = []
        self.refuses = refuses
        self.hangs = hangs
        self.busy = threading.Event()
        self.closed = threading.Event()

    def export(self, spans: list[Span]) -> None:
        self.busy.set()
        if self.hangs:
            self.closed.wait(60)
        if self.refuses or self.hangs:
            raise ConnectionError("nobody is there")
        self.exports.append(spans)

    def close(self) -> None:
        self.closed.set()


def exporting(sink: ListSink, settings: ExportSettings = SOON, limit: int = 100) -> tuple[TraceExporter, TraceQueue]:
    queue = TraceQueue(limit)
    exporter = TraceExporter(queue, settings, lambda: sink, spans_of)
    exporter.start()
    return exporter, queue


def put(queue: TraceQueue, requests: int) -> None:
    trace = ModelTrace(TraceShare(1, -1), queue, now_ns())
    for _ in range(requests):
        trace.finished(request())


def wait_until(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_records_are_exported_in_batches() -> None:
    sink = ListSink()
    exporter, queue = exporting(sink)
    put(queue, 10)
    wait_until(lambda: sum(map(len, sink.exports)) == 10)
    exporter.stop(10)
    assert max(map(len, sink.exports)) <= 4
    assert sink.closed.is_set()
    assert exporter.failed == 0


def test_a_stop_exports_what_is_left() -> None:
    sink = ListSink()
    exporter, queue = exporting(sink, ExportSettings(bsp_schedule_delay=1_000_000))
    put(queue, 3)
    exporter.stop(10)
    assert [len(spans) for spans in sink.exports] == [3]


def test_refused_exports_are_counted_and_the_next_are_tried() -> None:
    sink = ListSink(refuses=True)
    exporter, queue = exporting(sink)
    put(queue, 5)
    wait_until(lambda: exporter.failed == 5)
    sink.refuses = False
    put(queue, 1)
    wait_until(lambda: len(sink.exports) == 1)
    exporter.stop(10)


def test_while_an_export_hangs_records_are_dropped_and_a_stop_ends() -> None:
    sink = ListSink(hangs=True)
    exporter, queue = exporting(sink, limit=20)
    put(queue, 1)
    assert sink.busy.wait(30)
    put(queue, 100)
    assert (len(queue), queue.dropped) == (20, 80)
    exporter.stop(0.05)
    # Not by the exporter's thread, which hangs.
    assert sink.closed.wait(30)
    wait_until(lambda: exporter.failed == 21)


def test_a_sink_that_cannot_be_opened_ends_the_thread_alone() -> None:
    def fails() -> ListSink:
        raise ImportError("no such package")

    exporter = TraceExporter(TraceQueue(1), SOON, fails, spans_of)
    exporter.start()
    exporter.stop(10)
    assert not exporter._thread.is_alive()


@pytest.mark.parametrize("started", [False, True])
def test_a_stop_may_come_at_any_time(started: bool) -> None:
    exporter = TraceExporter(TraceQueue(1), SOON, ListSink, spans_of)
    if started:
        exporter.start()
    exporter.stop(10)
    exporter.stop(10)
