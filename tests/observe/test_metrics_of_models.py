"""Metrics that models define themselves: rules, the page, and their end with their model."""

from __future__ import annotations

import gc
import threading

import pytest

from isochrone.observe.metrics.exposition import Exposition
from isochrone.observe.model_metrics import COUNTER, GAUGE, HISTOGRAM, BadMetric, ModelMetrics
from isochrone.observe.snapshot import ServerSnapshot


def page(metrics: ModelMetrics) -> str:
    body, _ = Exposition(lambda: ServerSnapshot(of_models=metrics.snapshot()), machine=False).render()
    return body.decode()


def test_a_counter_keeps_its_name_and_its_type_on_the_page() -> None:
    metrics = ModelMetrics()
    series = metrics.series("preprocess_ns", "Time spent", COUNTER, {"model": "a"})
    series.increment(2)
    series.increment(3.5)
    assert series.value() == 5.5
    text = page(metrics)
    assert "# TYPE preprocess_ns counter" in text
    assert 'preprocess_ns{model="a"} 5.5' in text


def test_gauges_and_histograms() -> None:
    metrics = ModelMetrics()
    gauge = metrics.series("depth", "Depth", GAUGE, {})
    gauge.set(7)
    gauge.increment(-2)
    histogram = metrics.series("sizes", "Sizes", HISTOGRAM, {"of": "x"}, [1.0, 10.0])
    for value in (0.5, 1.0, 3.0, 99.0):
        histogram.observe(value)
    text = page(metrics)
    assert "depth 5.0" in text
    for line in ('sizes_bucket{le="1.0",of="x"} 2.0', 'sizes_bucket{le="10.0",of="x"} 3.0', 'sizes_count{of="x"} 4.0'):
        assert line in text
    assert 'sizes_sum{of="x"} 103.5' in text


def test_a_metric_leaves_the_page_with_its_model() -> None:
    metrics = ModelMetrics()
    series = metrics.series("left", "", COUNTER, {})
    assert "left" in page(metrics)
    del series
    gc.collect()
    assert "left" not in page(metrics)
    # Its name is free for another kind.
    assert metrics.series("left", "", GAUGE, {}) is not None


@pytest.mark.parametrize(
    ("name", "kind", "labels", "buckets"),
    [
        ("1st", COUNTER, {}, []),
        ("nv_inference_count", COUNTER, {}, []),
        ("isochrone_model", GAUGE, {}, []),
        ("fine", "summary", {}, []),
        ("fine", COUNTER, {"a-b": "x"}, []),
        ("fine", HISTOGRAM, {}, []),
        ("fine", HISTOGRAM, {}, [2.0, 1.0]),
        ("fine", GAUGE, {}, [1.0]),
    ],
)
def test_what_cannot_be_on_a_page_is_refused(
    name: str, kind: str, labels: dict[str, str], buckets: list[float]
) -> None:
    with pytest.raises(BadMetric, match="expected"):
        ModelMetrics().series(name, "", kind, labels, buckets)


def test_two_models_share_a_family_of_one_kind() -> None:
    metrics = ModelMetrics()
    first = metrics.series("both", "", COUNTER, {"model": "a"})
    second = metrics.series("both", "", COUNTER, {"model": "b", "more": "c"})
    first.increment(1)
    second.increment(2)
    assert 'both{model="a",more=""} 1.0' in page(metrics)
    assert 'both{model="b",more="c"} 2.0' in page(metrics)
    with pytest.raises(BadMetric, match="expected a counter"):
        metrics.series("both", "", GAUGE, {})


def test_wrong_changes_are_refused() -> None:
    metrics = ModelMetrics()
    counter = metrics.series("c", "", COUNTER, {})
    for change in (lambda: counter.increment(-1), lambda: counter.set(1), lambda: counter.observe(1)):
        with pytest.raises(BadMetric):
            change()
    with pytest.raises(BadMetric):
        metrics.series("h", "", HISTOGRAM, {}, [1.0]).value()


def test_changes_from_many_threads_add_up() -> None:
    series = ModelMetrics().series("n", "", COUNTER, {})
    threads = [threading.Thread(target=lambda: [series.increment(1) for _ in range(1000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert series.value() == 8000
