"""The figures of a metrics page over OTLP: the same names and numbers, and an export that nobody waits for."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, UnknownMetricFamily
from structlog.testing import capture_logs

from isochrone.errors import FlagError
from isochrone.observe.metrics.exposition import Exposition
from isochrone.observe.otlp_metrics.exporter import MetricsExporter
from isochrone.observe.otlp_metrics.figures import GAUGE, HISTOGRAM, SUM, Figure, figures_of
from isochrone.observe.otlp_metrics.settings import MetricsExport, read_metrics_export
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, STAGES, Histogram, ModelSnapshot, ServerSnapshot

EXPORT = MetricsExport("http", "http://c:4318/v1/metrics", 1.0, "w")


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_a_histogram_is_the_same_one(counts: list[int]) -> None:
    family = HistogramMetricFamily("h", "text", labels=("m",))
    bounds = [str(float(number)) for number in range(len(counts) - 1)]
    cumulative = np.cumsum(counts).tolist()
    family.add_metric(("a",), list(zip([*bounds, "+Inf"], cumulative, strict=True)), 12.5)
    ((figure,)) = (figures_of([family]),)
    (found,) = figure[0].histograms
    assert (found.labels, found.counts, found.total) == ({"m": "a"}, tuple(counts), 12.5)
    assert found.bounds == tuple(map(float, bounds))


def test_names_and_kinds_are_those_of_the_page() -> None:
    pieces = [
        CounterMetricFamily("isochrone_x", "text", 3),
        GaugeMetricFamily("isochrone_g", "text", 4),
        UnknownMetricFamily("nv_inference_count", "text", 5),
        CounterMetricFamily("isochrone_x", "text", 6),
    ]
    found = {each.name: (each.kind, [value for _, value in each.values]) for each in figures_of(pieces)}
    assert found == {
        "isochrone_x_total": (SUM, [3, 6]),
        "isochrone_g": (GAUGE, [4]),
        "nv_inference_count": (SUM, [5]),
    }


def test_every_sample_of_a_worker_s_page_is_exported() -> None:
    counts = np.zeros(len(BUCKET_BOUNDS_NS) + 1, np.int64)
    counts[3] = 7
    stages = {stage: Histogram(counts, 1000) for stage in STAGES}
    model = ModelSnapshot("m", "1", "d", 0, 7, {}, {}, 7, 7, 0, 0, 0, 0, stages)
    snapshot = ServerSnapshot((model,))
    exposition = Exposition(lambda: snapshot, machine=False)
    page = exposition.render()[0].decode()
    shown = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if not line.startswith("#")}
    figures = figures_of(exposition.families(snapshot))
    exported = {each.name for each in figures if each.kind != HISTOGRAM}
    for each in figures:
        if each.kind == HISTOGRAM:
            exported |= {f"{each.name}_{end}" for end in ("bucket", "sum", "count")}
    assert shown <= exported


@pytest.mark.parametrize(
    ("url", "protocol", "sent_to"),
    [
        ("http://c:4318", "http", "http://c:4318/v1/metrics"),
        ("https://c/otlp/v1/metrics", "http", "https://c/otlp/v1/metrics"),
        ("grpc://c:4317", "grpc", "http://c:4317"),
    ],
)
def test_where_figures_go(url: str, protocol: str, sent_to: str) -> None:
    assert read_metrics_export(url, 5, "w") == MetricsExport(protocol, sent_to, 5, "w")


@pytest.mark.parametrize("url", ["c:4318", "ftp://c", "http://", "http://c:x"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(FlagError):
        read_metrics_export(url, 5, "w")


class Sink:
    """Keeps what is exported; fails or hangs as it is told."""

    def __init__(self, settings: MetricsExport) -> None:
        self.exports: list[list[Figure]] = []
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.error: Exception | None = None

    def export(self, figures: list[Figure]) -> None:
        self.entered.set()
        self.gate.wait(30)
        if self.error is not None:
            raise self.error
        self.exports.append(figures)

    def close(self) -> None: ...


def made() -> tuple[MetricsExporter, Sink]:
    sink = Sink(EXPORT)
    exporter = MetricsExporter(EXPORT, lambda settings: sink)
    exporter.start()
    return exporter, sink


def value(number: float) -> Any:
    return lambda: [GaugeMetricFamily("g", "text", number)]


def test_a_collector_that_hangs_gets_the_newest_figures_afterwards() -> None:
    exporter, sink = made()
    exporter.offer(value(1))
    assert sink.entered.wait(30)
    for number in range(2, 100):
        exporter.offer(value(number))
    sink.gate.set()
    exporter.stop(30)
    assert [each[0].values[0][1] for each in sink.exports] == [1, 99]


def test_a_collector_that_is_away_is_said_once() -> None:
    exporter, sink = made()
    sink.error = ConnectionError("away")
    sink.gate.set()
    with capture_logs() as lines:
        for number in range(3):
            exporter.offer(value(number))
        exporter.stop(30)
    assert exporter.failed >= 1
    assert [line["event"] for line in lines] == ["metrics could not be exported; is the collector reachable?"]
