"""Figures of ``isochrone top`` from metrics pages: what is read, rates and percentiles between two readings."""

from __future__ import annotations

import re

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


def later_worker(requests: int = 100, rejected: int = 7, cpu: float = 2.5, durations: int = 0) -> str:
    """The page of the worker some requests later; ``durations``: so many more in each bucket."""
    page = WORKER_PAGE.replace('version="1"} 100', f'version="1"}} {requests}')
    page = page.replace('reason="REJECTED"} 7', f'reason="REJECTED"}} {rejected}').replace(" 2.5", f" {cpu}")
    return re.sub(r'(stage="request",le="\S+"}) (\d+)', lambda found: f"{found[1]} {int(found[2]) + durations}", page)


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
    worker, more = read_page(WORKER_PAGE), read_page(later_worker(requests=150, cpu=3.5, durations=50))
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
    later = read_page(PAGE.replace('{model="a"} 10', '{model="a"} 40').replace('"worker"} 2', '"worker"} 4'))
    worker = read_page(WORKER_PAGE)
    stage = 'nv_inference_request_success{model="stage",version="1"} 10\n'
    busy = read_page(later_worker(requests=120, durations=20) + stage)
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
    worker, busy = read_page(WORKER_PAGE), read_page(later_worker(requests=120, rejected=9))
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


def version_page(**counts: int) -> str:
    """A worker with one model: requests by version, all under a millisecond."""
    lines = ["process_cpu_seconds_total 1\n"]
    for version, count in counts.items():
        labels = f'model="a",version="{version}"'
        lines.append(f"nv_inference_request_success{{{labels}}} {count}\n")
        for bound in ("0.001", "+Inf"):
            name = "isochrone_request_duration_seconds_bucket"
            lines.append(f'{name}{{{labels},stage="request",le="{bound}"}} {count}\n')
    return "".join(lines)


def rates_of(*pages: str) -> list[float | None]:
    """Requests per second between pages of one process, one second apart: of the process; the model must agree."""
    found, last = [], read_page(pages[0])
    for page in pages[1:]:
        now = read_page(page)
        pair = last, now, 1.0
        found.append(between(*pair).requests)
        runs = of_models((), (pair,)).get("a")
        assert (runs.runs if runs is not None else None) == found[-1]
        last = now.remembering(last)
    return found


def test_a_version_that_leaves_and_comes_back_makes_no_spike() -> None:
    both, one = version_page(v1=1_000_000, v2=500), version_page(v2=510)
    # The counters of the version go, and come back as they were, or begin again.
    assert rates_of(both, one, version_page(v1=1_000_003, v2=520)) == [10.0, 13.0]
    assert rates_of(both, one, version_page(v1=4, v2=520)) == [10.0, 14.0]
    # It may be away for long.
    assert rates_of(both, one, one, one, version_page(v1=1_000_005, v2=510)) == [10.0, 0.0, 0.0, 5.0]


def test_the_only_version_of_a_model_may_go_and_come_back() -> None:
    with_it, empty = version_page(v1=800), version_page()
    assert rates_of(with_it, empty, version_page(v1=803)) == [None, 3.0]


def test_a_process_that_restarts_counts_from_nothing_and_so_does_each_of_its_series() -> None:
    before = version_page(v1=1000, v2=10)
    # One of its series is already above what it was: only that one is undercounted.
    assert rates_of(before, version_page(v1=5, v2=12)) == [7.0]
    assert rates_of(before, version_page(v1=5)) == [5.0]


def test_a_percentile_is_of_the_new_requests_alone_when_a_version_leaves() -> None:
    slow = version_page(v1=1000).replace('le="0.001"} 1000', 'le="0.001"} 0')
    before, after = read_page(slow + version_page(v2=10)), read_page(version_page(v2=20))
    assert between(before, after, 1.0).p99_ms == pytest.approx(0.99)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3), min_size=1, max_size=8))
def test_rates_never_exceed_what_was_counted(steps: list[dict[str, int]]) -> None:
    """Versions come and go, their counters go on: the growth of all steps is at most what was counted in all."""
    totals: dict[str, int] = {}
    pages = [version_page()]
    for step in steps:
        for version, count in step.items():
            totals[version] = totals.get(version, 0) + count
        # Only the versions of this step are on the page.
        pages.append(version_page(**{version: totals[version] for version in step}))
    assert sum(rate or 0.0 for rate in rates_of(*pages)) <= sum(totals.values())
