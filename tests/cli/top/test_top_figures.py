"""Figures of ``isochrone top`` from metrics pages: what is read, rates and percentiles between two readings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from isochrone.cli.top.figures import between, of_a_worker_alone, of_models, of_part, quantile
from isochrone.cli.top.readings import Reading, read_page

PAGE = """
# TYPE isochrone_gateway_requests_total counter
isochrone_gateway_requests_total{model="a"} 10
isochrone_gateway_requests_total{model="b"} 5
isochrone_gateway_rejected_total{model="a"} 1
isochrone_gateway_rejections_total{model="a",reason="queue_full"} 1
isochrone_gateway_rejections_total{model="a",reason="worker"} 2
isochrone_gateway_in_flight 3
"""
#: As workers write it: a counter of Triton's has no "_total" in its name, but is declared as one.
WORKER_PAGE = """
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="a",version="1"} 100
nv_inference_request_failure{model="a",version="1",reason="OTHER"} 2
nv_inference_request_failure{model="a",version="1",reason="REJECTED"} 7
nv_inference_request_failure{model="a",version="1",reason="CANCELED"} 40
nv_inference_pending_request_count{model="a",version="1"} 4
isochrone_request_duration_seconds_bucket{model="a",version="1",stage="request",le="0.001"} 90
isochrone_request_duration_seconds_bucket{model="a",version="1",stage="request",le="0.002"} 100
isochrone_request_duration_seconds_bucket{model="a",version="1",stage="request",le="+Inf"} 100
isochrone_request_duration_seconds_bucket{model="a",version="1",stage="queue",le="0.001"} 100
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 2.5
process_resident_memory_bytes 104857600
"""


def test_latencies_of_a_gateway_are_its_own_and_not_its_models() -> None:
    name = "isochrone_gateway_request_duration_seconds_bucket"
    lines = [
        f'{name}{{model="a",version="1",outcome="answered",le="0.001"}} 3',
        f'{name}{{model="b",version="1",outcome="answered",le="0.001"}} 4',
        f'{name}{{model="b",version="1",outcome="failed",le="0.001"}} 50',
    ]
    found = read_page(PAGE + "\n".join(lines) + "\n")
    assert found.buckets == {0.001: 7.0}
    assert {model: dict(each.buckets) for model, each in found.models.items()} == {"a": {}, "b": {}}


def test_pages_of_gateways_and_workers_are_added_up() -> None:
    assert read_page(PAGE).sums == {"requests": 15.0, "rejected": 3.0, "in_flight": 3.0}
    worker = read_page(WORKER_PAGE)
    assert worker.sums == {
        "requests": 100.0,
        "failures": 2.0,
        "rejected": 7.0,
        "in_flight": 4.0,
        "cpu": 2.5,
        "memory": 104857600.0,
    }
    assert {name: each.sums for name, each in worker.models.items()} == {
        "a": {"requests": 100.0, "failures": 2.0, "rejected": 7.0, "in_flight": 4.0}
    }
    assert worker.buckets == {0.001: 90.0, 0.002: 100.0, float("inf"): 100.0}


def test_figures_are_of_the_time_between_two_readings() -> None:
    worker = read_page(WORKER_PAGE)
    more = Reading(
        {**worker.sums, "requests": 150.0, "cpu": 3.5}, {bound: count + 50 for bound, count in worker.buckets.items()}
    )
    figures = between(worker, more, 2.0)
    assert (figures.requests, figures.failures, figures.in_flight, figures.rejected) == (25.0, 0.0, 4.0, 0.0)
    assert (figures.cpu, figures.memory) == (0.5, 104857600.0)
    # All fifty were under a millisecond.
    assert figures.p99_ms == pytest.approx(0.99)
    # A process that was started again counts from nothing.
    assert between(more, worker, 2.0).requests == 50.0
    assert between(worker, worker, 2.0).p99_ms is None
    assert between(Reading(), worker, 2.0).requests is None


@given(st.lists(st.floats(0.0001, 0.9999), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_lies_in_the_bucket_that_holds_it(values: list[float], share: float) -> None:
    bounds = [0.1, 0.2, 0.5, 1.0, float("inf")]
    found = quantile({bound: float(sum(value <= bound for value in values)) for bound in bounds}, share)
    assert found is not None
    exact = sorted(values)[max(0, -int(-len(values) * share // 1) - 1)]
    bucket = next(index for index, bound in enumerate(bounds) if exact <= bound)
    assert (bounds[bucket - 1] if bucket else 0.0) <= found + 1e-9
    assert found <= bounds[bucket] + 1e-9


def test_models_are_added_up_over_gateways_and_workers() -> None:
    gateway = read_page(PAGE)
    later = Reading(
        {**gateway.sums, "requests": 45.0}, {}, {**gateway.models, "a": Reading({"requests": 40.0, "rejected": 5.0})}
    )
    worker = read_page(WORKER_PAGE)
    grown = {bound: count + 20 for bound, count in worker.buckets.items()}
    model = Reading({**worker.models["a"].sums, "requests": 120.0}, grown)
    busy = Reading(worker.sums, grown, {"a": model, "stage": Reading({"requests": 10.0})})
    found = of_models([(gateway, later, 2.0)] * 2, [(worker, busy, 2.0)] * 2)
    assert (found["a"].requests, found["a"].rejected, found["a"].runs) == (30.0, 2.0, 20.0)
    assert found["a"].in_flight == 8.0
    assert found["a"].p99_ms == pytest.approx(0.99)
    # A model that only runs as a step of an ensemble, and a model without requests.
    assert (found["stage"].requests, found["stage"].runs) == (None, 10.0)
    assert found["b"].requests == 0.0
    # The first reading of a worker has current values only, no rates.
    first = of_models([], [(Reading(), busy, 0.0)])["a"]
    assert (first.runs, first.in_flight, first.p99_ms) == (None, 4.0, None)


def test_a_worker_without_known_gateways_counts_its_own_requests() -> None:
    worker = read_page(WORKER_PAGE)
    model = Reading({**worker.models["a"].sums, "requests": 120.0, "rejected": 9.0}, worker.models["a"].buckets)
    busy = Reading(worker.sums, worker.buckets, {"a": model})
    found = of_a_worker_alone((worker, busy, 2.0))["a"]
    assert (found.requests, found.rejected, found.failures, found.runs) == (10.0, 1.0, 0.0, 10.0)
    part = of_part("a", (worker, busy, 2.0))
    assert (part.requests, part.in_flight) == (10.0, 4.0)
    assert of_part("b", (worker, busy, 2.0)).requests is None


def test_a_page_says_whose_it_is_and_which_versions_it_has() -> None:
    assert read_page(WORKER_PAGE).versions == {"a": ("1",)}
    assert not read_page(WORKER_PAGE).is_gateway
    gateway = read_page(
        PAGE
        + 'isochrone_gateway_version{model="a"} 7\n'
        + 'isochrone_gateway_worker_healthy{worker="h:1"} 0\n'
        + 'isochrone_gateway_worker_in_flight{worker="h:1"} 2\n'
        + 'isochrone_gateway_worker_round_trip_seconds{worker="h:1"} 0.001\n'
    )
    assert gateway.is_gateway
    assert gateway.versions == {"a": ("7",)}
    assert gateway.endpoints == {"h:1": {"healthy": 0.0, "in_flight": 2.0, "round_trip": 0.001}}


def test_lines_of_other_metrics_are_not_read_and_bad_values_do_not_count() -> None:
    text = "<html>\nisochrone_gateway_in_flight NaN\nisochrone_gateway_requests_created 1e9\nprocess_cpu_seconds_x 5\n"
    assert read_page(text).sums == {}
    assert read_page("").sums == {}
    with pytest.raises(ValueError):
        read_page("isochrone_gateway_in_flight many\n")


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.floats(0, 1e9), max_size=6))
def test_pages_are_read_as_prometheus_reads_them(counts: dict[str, float]) -> None:
    family = CounterMetricFamily("isochrone_gateway_requests", "Requests", labels=("model",))
    for model, count in counts.items():
        family.add_metric((model,), count)
    registry = CollectorRegistry()
    registry.register(type("Page", (Collector,), {"collect": lambda self: [family]})())
    page = generate_latest(registry).decode()
    theirs = [sample for each in text_string_to_metric_families(page) for sample in each.samples]
    ours = {name: each.sums["requests"] for name, each in read_page(page).models.items()}
    assert ours == {sample.labels["model"]: sample.value for sample in theirs if sample.name.endswith("_total")}


@pytest.mark.parametrize(
    "line",
    [
        'isochrone_request_duration_seconds_bucket{model="a",stage="request"} 1',
        "process_cpu_seconds_total{" + "}" * 100_000 + " x y",
        "process_cpu_seconds_total \x1b[2J",
    ],
)
def test_strange_lines_are_errors_without_control_characters(line: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as raised:
        read_page(line)
    assert str(raised.value).isprintable()


def test_an_infinite_sum_has_no_rate() -> None:
    page = "".join(f'nv_inference_request_success{{model="{name}",version="1"}} 1e308\n' for name in "ab")
    before = read_page('nv_inference_request_success{model="a",version="1"} 0\n')
    assert between(before, read_page(page), 1.0).requests is None
