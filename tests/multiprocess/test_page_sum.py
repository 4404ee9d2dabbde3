"""Metrics pages added up."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families

from isochrone.multiprocess.metrics.page_sum import add_up, as_open_metrics, parse, render, retire
from isochrone.observe.metrics.exposition import Exposition
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, STAGES, ModelSnapshot, ServerSnapshot
from isochrone.observe.snapshot import Histogram as StageHistogram

#: Label values of any text: quotes, braces, line breaks.
LABELS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8)
OBSERVED = st.lists(st.floats(0, 20), max_size=5)
PROCESS = st.dictionaries(LABELS, st.tuples(st.integers(0, 1 << 40), OBSERVED, st.integers(-5, 5)), max_size=3)


def _registry(process: dict[str, tuple[int, list[float], int]]) -> CollectorRegistry:
    registry = CollectorRegistry()
    counter = Counter("requests", "Requests", ["model"], registry=registry)
    histogram = Histogram("seconds", "Seconds", ["model"], registry=registry)
    gauge = Gauge("waiting", "Waiting", ["model"], registry=registry)
    for model, (count, observed, waiting) in process.items():
        counter.labels(model).inc(count)
        gauge.labels(model).set(waiting)
        durations = histogram.labels(model)
        for value in observed:
            durations.observe(value)
    return registry


@given(st.lists(PROCESS, min_size=1, max_size=4))
def test_counters_histograms_and_plain_gauges_add_up(processes: list[dict[str, tuple[int, list[float], int]]]) -> None:
    pages = {
        number: parse(generate_latest(_registry(process)).decode()) for number, process in enumerate(processes, start=1)
    }
    total = render(add_up(pages))
    found = {
        (sample.name, sample.labels.get("model"), sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(total)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    models = {model for process in processes for model in process}
    for model in models:
        of_model = [process[model] for process in processes if model in process]
        observed = [value for _, values, _ in of_model for value in values]
        assert found["requests_total", model, None] == sum(count for count, _, _ in of_model)
        assert found["waiting", model, None] == sum(waiting for _, _, waiting in of_model)
        assert found["seconds_count", model, None] == len(observed)
        assert found["seconds_bucket", model, "1.0"] == sum(value <= 1 for value in observed)
        assert found["seconds_sum", model, None] == pytest.approx(sum(observed))


@given(st.lists(PROCESS, min_size=1, max_size=3))
def test_the_sum_is_a_page_of_the_same_format(processes: list[dict[str, tuple[int, list[float], int]]]) -> None:
    pages = {
        number: parse(generate_open_metrics(_registry(process)).decode())
        for number, process in enumerate(processes, start=1)
    }
    text = render(add_up(pages))
    assert {family.name for family in parse_open_metrics(text)} == {"requests", "seconds", "waiting"}


@given(st.lists(PROCESS, min_size=1, max_size=3))
def test_plain_pages_add_up_to_open_metrics(processes: list[dict[str, tuple[int, list[float], int]]]) -> None:
    pages = {
        number: parse(generate_latest(_registry(process)).decode()) for number, process in enumerate(processes, start=1)
    }
    total = add_up(pages)
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse_open_metrics(render(as_open_metrics(total)))
        for sample in family.samples
    }
    plain = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(render(total))
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert found == plain


def test_families_that_open_metrics_names_or_types_differently() -> None:
    plain = """# HELP a_total With "quotes"
# TYPE a_total counter
a_total 1.0
# HELP b Triton's counters have no suffix
# TYPE b counter
b 2.0
# HELP c Whatever
# TYPE c untyped
c 3.0
"""
    assert render(as_open_metrics(parse(plain))).splitlines() == [
        '# HELP a With \\"quotes\\"',
        "# TYPE a counter",
        "a_total 1.0",
        "# HELP b Triton's counters have no suffix",
        "# TYPE b unknown",
        "b 2.0",
        "# HELP c Whatever",
        "# TYPE c unknown",
        "c 3.0",
        "# EOF",
    ]


@given(PROCESS)
def test_one_page_is_its_own_sum(process: dict[str, tuple[int, list[float], int]]) -> None:
    text = generate_latest(_registry(process)).decode()
    assert render(add_up({1: parse(text)})) == text


@given(st.lists(PROCESS, min_size=2, max_size=4))
def test_the_counts_of_ended_processes_stay(processes: list[dict[str, tuple[int, list[float], int]]]) -> None:
    """A sum over living and ended processes is the sum over all, as far as it counts since the start."""
    pages = [parse(generate_latest(_registry(process)).decode()) for process in processes]
    *ended, last = pages
    retired: dict[tuple[str, str], float] = {}
    for page in ended:
        retired = retire(page, retired)
    every = add_up(dict(enumerate(pages)))
    living = add_up({7: last}, retired)
    for name in ("requests_total", "seconds"):
        for key, value in living.families[name].samples.items():
            assert value == pytest.approx(every.families[name].samples[key])
    assert living.families["waiting"].samples == last.families["waiting"].samples, "a gauge is of what lives"


PAGE = """\
# HELP nv_cpu_utilization Use
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization {share}
# TYPE nv_cache_util gauge
nv_cache_util {share}
# TYPE isochrone_gateway_epoch gauge
isochrone_gateway_epoch {epoch}
# TYPE isochrone_gateway_worker_healthy gauge
isochrone_gateway_worker_healthy{{worker="a:1"}} {healthy}
# TYPE isochrone_gateway_worker_round_trip_seconds gauge
isochrone_gateway_worker_round_trip_seconds{{worker="a:1"}} {round_trip}
# TYPE isochrone_gateway_in_flight gauge
isochrone_gateway_in_flight 2
# TYPE isochrone_model_info gauge
isochrone_model_info{{digest="d",model="m",version="1"}} 1.0
# TYPE process_open_fds gauge
process_open_fds {fds}
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total {fds}
"""


def test_figures_that_do_not_add_up() -> None:
    pages = {
        1: parse(PAGE.format(share=0.2, epoch=5, healthy=1, round_trip=0.002, fds=10)),
        2: parse(PAGE.format(share=0.4, epoch=6, healthy=0, round_trip=0.003, fds=11)),
    }
    lines = [line for line in render(add_up(pages)).splitlines() if not line.startswith("#")]
    assert lines == [
        "nv_cpu_utilization 0.4",
        "nv_cache_util 0.30000000000000004",
        "isochrone_gateway_epoch 6.0",
        'isochrone_gateway_worker_healthy{worker="a:1"} 0.0',
        'isochrone_gateway_worker_round_trip_seconds{worker="a:1"} 0.002',
        "isochrone_gateway_in_flight 4.0",
        'isochrone_model_info{digest="d",model="m",version="1"} 1.0',
        'process_open_fds{process="1"} 10.0',
        'process_open_fds{process="2"} 11.0',
        'process_cpu_seconds_total{process="1"} 10.0',
        'process_cpu_seconds_total{process="2"} 11.0',
    ]


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_a_workers_own_page(accept: str) -> None:
    def snapshot(count: int) -> ServerSnapshot:
        counts = np.zeros(len(BUCKET_BOUNDS_NS) + 1, np.int64)
        counts[3] = count
        stages = {stage: StageHistogram(counts, count * 1000) for stage in STAGES}
        failures = {"model_failed": count}
        model = ModelSnapshot("m", "1", "d", 1, count, failures, {}, count, count, 0, 0, 0, 0, stages)
        return ServerSnapshot((model,))

    texts = [Exposition(lambda count=count: snapshot(count)).render(accept)[0].decode() for count in (2, 3)]  # type: ignore[misc]
    total = render(add_up({number: parse(text) for number, text in enumerate(texts, start=1)}))
    assert 'nv_inference_request_success{model="m",version="1"} 5.0' in total
    assert 'isochrone_request_duration_seconds_count{model="m",stage="queue",version="1"} 5.0' in total
    # Every sample of a page has its place in the sum.
    named = [set(re.findall(r"^(\w+\{.*\})", text, re.M)) for text in (texts[0], total)]
    assert named[0] <= named[1]
