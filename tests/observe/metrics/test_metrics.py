"""The exposition, read back with prometheus_client's own parsers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from isochrone.observe.metrics.exposition import Exposition
from isochrone.observe.snapshot import (
    BUCKET_BOUNDS_NS,
    STAGES,
    CacheSnapshot,
    Histogram,
    ModelSnapshot,
    ServerSnapshot,
    WireSnapshot,
)

TRITON_COUNTERS = {
    "nv_inference_request_success": 12,
    "nv_inference_count": 40,
    "nv_inference_exec_count": 5,
    "nv_inference_request_duration_us": 1000,
    "nv_inference_queue_duration_us": 2000,
    "nv_inference_compute_input_duration_us": 3000,
    "nv_inference_compute_infer_duration_us": 4000,
    "nv_inference_compute_output_duration_us": 5000,
    "nv_cache_num_hits_per_model": 2,
    "nv_cache_num_misses_per_model": 10,
    "nv_cache_hit_duration_per_model": 7,
    "nv_cache_miss_duration_per_model": 9,
}
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def model(name: str = "m", version: str = "1", digest: str = "abc") -> ModelSnapshot:
    stages = {}
    for index, stage in enumerate(STAGES):
        counts = np.zeros(len(BUCKET_BOUNDS_NS) + 1, dtype=np.int64)
        counts[index] = 9
        counts[-1] = 1
        stages[stage] = Histogram(counts, (index + 1) * 1_000_000 + 999)
    return ModelSnapshot(
        model_name=name,
        model_version=version,
        digest=digest,
        pending=3,
        success=12,
        failures={"model_failed": 4, "cancelled": 2, "deadline_exceeded": 1, "invalid_argument": 8},
        rejections={"queue_full": 16, "deadline_exceeded": 32},
        inference_count=40,
        execution_count=5,
        cache_hits=2,
        cache_hit_ns=7_000,
        cache_misses=10,
        cache_miss_ns=9_000,
        stages=stages,
    )


def families(snapshot: ServerSnapshot, accept: str = "") -> dict[str, Metric]:
    body, content_type = Exposition(lambda: snapshot).render(accept)
    parse = parse_openmetrics if content_type.startswith("application/openmetrics") else parse_plain
    parsed = list(parse(body.decode()))
    assert len({metric.name for metric in parsed}) == len(parsed)
    return {metric.name: metric for metric in parsed}


def samples(metric: Metric) -> dict[tuple[str, ...], float]:
    """Label values in the order of their names → value."""
    return {tuple(value for _, value in sorted(s.labels.items())): s.value for s in metric.samples}


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_triton_names_labels_and_values_in_both_formats(accept: str) -> None:
    body, _ = Exposition(lambda: ServerSnapshot([model()])).render(accept)
    lines = body.decode().splitlines()
    for name, value in TRITON_COUNTERS.items():
        assert f'{name}{{model="m",version="1"}} {float(value)}' in lines
    assert 'nv_inference_pending_request_count{model="m",version="1"} 3.0' in lines


def wire() -> WireSnapshot:
    counts = np.zeros(len(BUCKET_BOUNDS_NS) + 1, np.int64)
    counts[0], counts[10] = 3, 1
    return WireSnapshot(77, 2, 20, 30, 100, 5, Histogram(counts, 2_500_000))


def test_plain_text_says_that_triton_counters_are_counters() -> None:
    body, content_type = Exposition(lambda: ServerSnapshot([model()])).render()
    lines = body.decode().splitlines()
    assert content_type.startswith("text/plain; version=0.0.4")
    for name in [*TRITON_COUNTERS, "nv_inference_request_failure"]:
        assert f"# TYPE {name} counter" in lines
        assert any(line.startswith(f"# HELP {name} ") for line in lines)
    assert "# TYPE nv_inference_pending_request_count gauge" in lines
    assert not any(line.endswith(" untyped") for line in lines)


def test_every_sample_stands_under_a_help_and_a_type() -> None:
    for metric in families(ServerSnapshot([model()], wire())).values():
        assert metric.documentation
        assert metric.type in ("counter", "gauge", "histogram")


def test_failures_by_tritons_reason_and_by_our_code() -> None:
    parsed = families(ServerSnapshot([model()]))
    assert samples(parsed["nv_inference_request_failure"]) == {
        ("m", "REJECTED", "1"): 49.0,
        ("m", "CANCELED", "1"): 2.0,
        ("m", "BACKEND", "1"): 4.0,
        ("m", "OTHER", "1"): 8.0,
    }
    by_code = samples(parsed["isochrone_request_failures"])
    # code, model, taken, version
    assert by_code["deadline_exceeded", "m", "true", "1"] == 1.0
    assert by_code["deadline_exceeded", "m", "false", "1"] == 32.0
    assert by_code["queue_full", "m", "false", "1"] == 16.0


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_histogram_is_cumulative_and_in_seconds(accept: str) -> None:
    metric = families(ServerSnapshot([model()]), accept)["isochrone_request_duration_seconds"]
    assert metric.type == "histogram"
    queue = [sample for sample in metric.samples if sample.labels["stage"] == "queue"]
    buckets = {float(s.labels["le"]): s.value for s in queue if s.name.endswith("_bucket")}
    assert sorted(buckets)[:-1] == [bound / 1e9 for bound in BUCKET_BOUNDS_NS]
    assert buckets[50e-6] == 0.0
    assert buckets[75e-6] == 9.0
    assert buckets[10.0] == 9.0
    assert buckets[float("inf")] == 10.0
    others = {s.name.removeprefix("isochrone_request_duration_seconds"): s.value for s in queue}
    assert others["_count"] == 10.0
    assert others["_sum"] == pytest.approx(0.002000999)
    assert {sample.labels["stage"] for sample in metric.samples} == set(STAGES)


def test_model_info_carries_the_digest() -> None:
    body, _ = Exposition(lambda: ServerSnapshot([model(), model("n", "7", "d1")])).render()
    assert b'isochrone_model_info{digest="abc",model="m",version="1"} 1.0\n' in body
    assert b'isochrone_model_info{digest="d1",model="n",version="7"} 1.0\n' in body


def test_what_nobody_measures_is_not_shown() -> None:
    assert "isochrone_connections" not in families(ServerSnapshot())
    assert "isochrone_event_loop_lag_seconds" not in families(ServerSnapshot())
    shown = families(ServerSnapshot((), wire()))
    assert shown["isochrone_connections"].samples[0].value == 77.0
    assert shown["isochrone_connections_stalled"].samples[0].value == 2.0
    assert shown["isochrone_buffered_peak_bytes"].samples[0].value == 30.0
    assert shown["isochrone_rejected_for_memory"].samples[0].value == 5.0
    lag = {
        sample.labels.get("le", sample.name): sample.value
        for sample in shown["isochrone_event_loop_lag_seconds"].samples
    }
    assert lag["5e-05"] == 3.0
    assert lag["+Inf"] == 4.0
    assert lag["isochrone_event_loop_lag_seconds_sum"] == pytest.approx(0.0025)


def test_the_process_and_the_machine_are_there() -> None:
    parsed = families(ServerSnapshot())
    assert parsed["process_resident_memory_bytes"].samples[0].value > 1 << 20
    assert parsed["process_open_fds"].samples[0].value >= 3
    assert 0.0 <= parsed["nv_cpu_utilization"].samples[0].value <= 1.0
    total = parsed["nv_cpu_memory_total_bytes"].samples[0].value
    assert 0 < parsed["nv_cpu_memory_used_bytes"].samples[0].value < total


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        ("", "text/plain"),
        ("*/*", "text/plain"),
        ("text/html;q=1", "text/plain"),
        (OPENMETRICS, "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text", "application/openmetrics-text"),
        ("application/openmetrics-text; version=what", "text/plain"),
        ("text/plain; version=\x00", "text/plain"),
    ],
)
def test_the_accept_header_chooses_the_format_and_never_fails(accept: str, given: str) -> None:
    body, content_type = Exposition(ServerSnapshot).render(accept)
    assert content_type.startswith(given)
    assert body.endswith(b"# EOF\n") == given.startswith("application/")


def test_a_snapshot_taken_before_is_the_one_rendered() -> None:
    def take() -> ServerSnapshot:
        raise AssertionError("the server's state must not be touched while rendering")

    body, _ = Exposition(take).render("", ServerSnapshot((), wire()))
    assert b"isochrone_connections 77.0\n" in body


@settings(max_examples=40, deadline=None)
@given(name=st.text(), version=st.text(), digest=st.text())
@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_any_label_comes_back_as_it_was(accept: str, name: str, version: str, digest: str) -> None:
    # Lone surrogates cannot be in a name that came as UTF-8. The parsers split text on more than "\n".
    if any("\ud800" <= letter <= "\udfff" for letter in name + version + digest):
        return
    if len((name + version + digest).replace("\n", "").splitlines()) > 1:
        return
    parsed = families(ServerSnapshot([model(name, version, digest)]), accept)
    success = parsed["nv_inference_request_success"]
    assert samples(success) == {(name, version): 12.0}
    info = parsed["isochrone_model" if accept else "isochrone_model_info"]
    assert info.samples[0].labels == {"model": name, "version": version, "digest": digest}


def test_the_server_itself_under_tritons_names() -> None:
    cache = CacheSnapshot(
        entries=3, bytes_used=50, limit_bytes=200, hits=7, misses=4, evictions=2, lookup_ns=5_900, insertion_ns=8_100
    )
    shown = families(ServerSnapshot(cache=cache))
    values = {name: next(iter(samples(metric).values())) for name, metric in shown.items() if metric.samples}
    expected = {
        "nv_pinned_memory_pool_total_bytes": 0,
        "nv_pinned_memory_pool_used_bytes": 0,
        "nv_cache_util": 0.25,
        "nv_cache_num_entries": 3,
        "nv_cache_num_hits": 7,
        "nv_cache_num_misses": 4,
        "nv_cache_num_lookups": 11,
        "nv_cache_num_evictions": 2,
        "nv_cache_lookup_duration": 5,
        "nv_cache_insertion_duration": 8,
    }
    assert expected.items() <= values.items()
    assert all(shown[name].type == "gauge" for name in expected)
    assert "nv_cache_util" not in families(ServerSnapshot())


def test_the_machine_may_be_left_out() -> None:
    assert b"nv_cpu_utilization" in Exposition(ServerSnapshot).render()[0]
    assert b"nv_cpu_utilization" not in Exposition(ServerSnapshot, machine=False).render()[0]
